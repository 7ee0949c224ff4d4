"""A follower's fetch and its answer, in the shape that nearly all have: a session that goes on, nothing forgotten.

They are the most frequent messages between brokers, so they are written and read by hand: as the compiled codec would,
byte for byte, but without an object for every field. Whatever has another shape is left to the codec.

    head | wait, bytes, isolation | session, epoch | topics: id | partitions: numbers, no tags | no tags | the follower
"""

from collections.abc import Mapping, Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple

from moldau.model.ids import UUID_BYTES
from moldau.model.ports import FileSlice, Piece
from moldau.wire.primitives import uvarint

FETCH: Final = 1  # the API's number
OLDEST: Final = 15  # from here on the follower names itself in a tagged field
NEWEST: Final = 18
COUNT_MAX: Final = 126  # of what has its number in one byte
NO_VERSION: Final = -1  # before a question is asked
NO_CORRELATION: Final = -1

_HEAD: Final = Struct(">ihhih")  # length, API, version, correlation id, length of the client id
_QUESTION: Final = Struct(">iiibiiB")  # wait, least and most bytes, isolation, session, its epoch, one more than topics
_PARTITION: Final = Struct(">iiqiqiB")  # index, leader epoch, offset, last epoch, log start, most bytes, tags
_WHO: Final = Struct(">BBBBBiqB")  # nothing forgotten, no rack, one tag, its number and size: replica, epoch; no tags
_WHO_BEGINS: Final = (1, 1, 1, 1, 13)
_ANSWER: Final = Struct(">iiBihiB")  # length, correlation id, tags; throttling, error, session, one more than topics
_ANSWER_READ: Final = Struct(">iBihiB")  # the same without the length
_HEARD: Final = Struct(">ihqqqBi")  # index, error, high watermark, last stable offset, log start, aborted, preferred

_read_head = Struct(">hhih").unpack_from
_read_question = _QUESTION.unpack_from
_read_partition = _PARTITION.unpack_from
_read_who = _WHO.unpack_from
_read_answer = _ANSWER_READ.unpack_from
_read_heard = _HEARD.unpack_from
_write_partition = _PARTITION.pack
_write_heard = _HEARD.pack
_new = tuple.__new__


class FetchPartition(NamedTuple):
    """What a fetch says of one partition."""

    topic_id: bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FollowerFetchRequest(NamedTuple):
    """A follower's fetch."""

    version: int
    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    asked: list[FetchPartition]
    replica: int
    broker_epoch: int

    def write(self, version: int, correlation_id: int, client_id: bytes) -> bytes:
        """A whole frame in this version; no more topics, and partitions of a topic, than COUNT_MAX."""
        named: dict[bytes, list[bytes]] = {}
        for topic_id, *numbers in self.asked:
            partition = _write_partition(*numbers, 0)
            if topic_id in named:
                named[topic_id].append(partition)
            else:
                named[topic_id] = [partition]
        _, _, wait_ms, min_bytes, max_bytes, session_id, session_epoch, _, replica, broker_epoch = self
        question = _QUESTION.pack(wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch, len(named) + 1)
        body = [client_id, b"\0", question]
        for topic_id, partitions in named.items():
            body += (topic_id, uvarint(len(partitions) + 1), *partitions, b"\0")
        body.append(_WHO.pack(*_WHO_BEGINS, replica, broker_epoch, 0))
        written = b"".join(body)
        return _HEAD.pack(len(written) + 10, FETCH, version, correlation_id, len(client_id)) + written


class PartitionResponse(NamedTuple):
    """What an answer says of one partition."""

    topic_id: bytes
    partition_index: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


def read_question(frame: memoryview) -> FollowerFetchRequest | None:
    """A frame without its length, if it is such a fetch."""
    try:
        return _question(frame)
    except (error, IndexError):  # shorter than it should be
        return None


def _question(frame: memoryview) -> FollowerFetchRequest | None:
    api_key, version, correlation_id, name_bytes = _read_head(frame)
    if api_key != FETCH or not OLDEST <= version <= NEWEST or name_bytes < 0 or frame[10 + name_bytes]:
        return None
    position = 11 + name_bytes
    wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics = _read_question(frame, position)
    if isolation or not 0 < topics <= COUNT_MAX + 1 or session_epoch <= 0:
        return None
    position += _QUESTION.size
    asked: list[FetchPartition] = []
    for _ in range(topics - 1):
        start, position = position, position + UUID_BYTES
        topic_id, count = frame[start:position].tobytes(), frame[position]
        if not 0 < count <= COUNT_MAX + 1:
            return None
        position += 1
        for _ in range(count - 1):
            index, epoch, offset, last_epoch, start_offset, bytes_max, tags = _read_partition(frame, position)
            if tags:
                return None
            asked.append(_new(FetchPartition, (topic_id, index, epoch, offset, last_epoch, start_offset, bytes_max)))
            position += _PARTITION.size
        if frame[position]:
            return None
        position += 1
    *begins, replica, broker_epoch, tags = _read_who(frame, position)
    if tuple(begins) != _WHO_BEGINS or replica < 0 or tags or position + _WHO.size != len(frame):
        return None
    numbers = version, correlation_id, wait_ms, min_bytes, max_bytes, session_id, session_epoch
    return _new(FollowerFetchRequest, (*numbers, asked, replica, broker_epoch))


def write_answer(correlation_id: int, session_id: int, answers: Mapping[bytes, Sequence[Any]]) -> list[Piece] | None:
    """A whole frame with what a session is told of partitions by their topics; None where the codec has to do it."""
    if len(answers) > COUNT_MAX:
        return None
    pieces: list[Piece] = []
    length = -4  # it does not count itself
    head = part = bytearray(_ANSWER.size)
    for topic_id, partitions in answers.items():
        part += topic_id
        part += uvarint(len(partitions) + 1)
        for answer in partitions:
            if answer.error_code or answer.diverging_epoch is not None:
                return None
            part += _write_heard(answer.partition_index, 0, answer.high_watermark, -1, answer.log_start_offset, 0, -1)
            records = answer.records
            part += uvarint(len(records) + 1)
            if isinstance(records, FileSlice):
                pieces += (part, records)
                length += len(part) + records.length
                part = bytearray()
            else:
                part += records
            part.append(0)
        part.append(0)
    part.append(0)
    pieces.append(part)
    _ANSWER.pack_into(head, 0, length + len(part), correlation_id, 0, 0, 0, session_id, len(answers) + 1)
    return pieces


def read_answer(frame: memoryview) -> tuple[int, list[PartitionResponse]] | None:
    """The session and what is told of partitions, from a frame without its length; None if it tells something else."""
    try:
        return _answer(frame)
    except (error, IndexError):
        return None


def _answer(frame: memoryview) -> tuple[int, list[PartitionResponse]] | None:
    _, tags, throttle_ms, code, session_id, topics = _read_answer(frame)
    if tags or throttle_ms or code or not 0 < topics <= COUNT_MAX + 1:
        return None
    position = _ANSWER_READ.size
    heard: list[PartitionResponse] = []
    for _ in range(topics - 1):
        start, position = position, position + UUID_BYTES
        topic_id, count = frame[start:position].tobytes(), frame[position]
        if not 0 < count <= COUNT_MAX + 1:
            return None
        position += 1
        for _ in range(count - 1):
            index, code, high_watermark, _, start_offset, aborted, _ = _read_heard(frame, position)
            if code or aborted:
                return None
            position += _HEARD.size
            size = shift = 0
            while True:
                byte = frame[position]
                position += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 28:
                    return None
            end = position + size - 1
            if size == 0 or frame[end]:  # null, or tags
                return None
            heard.append(_new(PartitionResponse, (topic_id, index, high_watermark, start_offset, frame[position:end])))
            position = end + 1
        if frame[position]:
            return None
        position += 1
    return None if frame[position] else (session_id, heard)
