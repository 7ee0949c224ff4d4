"""Hand-written codec of the common follower fetch and its response: an established session, no forgotten topics.

These are the most frequent messages between brokers. The bytes equal those of the compiled codec, but no object is
created per field. Requests and responses of any other form are left to the compiled codec.

    head | wait, bytes, isolation | session, epoch | topics: id | partitions: numbers, no tags | no tags | replica
"""

from collections.abc import Mapping, Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple

from moldau.model.ids import UUID_BYTES
from moldau.model.ports import FileSlice, Piece
from moldau.wire.primitives import uvarint

FETCH: Final = 1  # API key
OLDEST: Final = 15  # the first version with the replica state in a tagged field
NEWEST: Final = 18
COUNT_MAX: Final = 126  # the largest count whose varint takes one byte
NO_VERSION: Final = -1  # before a request is sent
NO_CORRELATION: Final = -1

_HEAD: Final = Struct(">ihhih")  # length, API, version, correlation id, length of the client id
_REQUEST: Final = Struct(">iiibiiB")  # max wait, min and max bytes, isolation, session id, session epoch, topics + 1
_PARTITION: Final = Struct(">iiqiqiB")  # index, leader epoch, offset, last epoch, log start, max bytes, tags
# no forgotten topics, no rack, one tag, its number and size; replica, epoch; no tags
_REPLICA: Final = Struct(">BBBBBiqB")
_REPLICA_PREFIX: Final = (1, 1, 1, 1, 13)
_RESPONSE: Final = Struct(">iiBihiB")  # length, correlation id, tags; throttle time, error, session id, topics + 1
_RESPONSE_BODY: Final = Struct(">iBihiB")  # the same without the length
# index, error, high watermark, last stable offset, log start, aborted, preferred
_PARTITION_RESPONSE: Final = Struct(">ihqqqBi")

_read_head = Struct(">hhih").unpack_from
_read_request = _REQUEST.unpack_from
_read_partition = _PARTITION.unpack_from
_read_replica = _REPLICA.unpack_from
_read_response = _RESPONSE_BODY.unpack_from
_read_partition_response = _PARTITION_RESPONSE.unpack_from
_write_partition = _PARTITION.pack
_write_partition_response = _PARTITION_RESPONSE.pack
_new = tuple.__new__


class FetchPartition(NamedTuple):
    """One partition of a fetch request."""

    topic_id: bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FollowerFetchRequest(NamedTuple):
    """A follower's fetch request."""

    version: int
    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    replica: int
    broker_epoch: int

    def write(self, version: int, correlation_id: int, client_id: bytes) -> bytes:
        """Encode a whole frame; at most COUNT_MAX topics, and partitions per topic."""
        named: dict[bytes, list[bytes]] = {}
        for topic_id, *numbers in self.partitions:
            partition = _write_partition(*numbers, 0)
            if topic_id in named:
                named[topic_id].append(partition)
            else:
                named[topic_id] = [partition]
        _, _, wait_ms, min_bytes, max_bytes, session_id, session_epoch, _, replica, broker_epoch = self
        body_head = _REQUEST.pack(wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch, len(named) + 1)
        body = [client_id, b"\0", body_head]
        for topic_id, partitions in named.items():
            body += (topic_id, uvarint(len(partitions) + 1), *partitions, b"\0")
        body.append(_REPLICA.pack(*_REPLICA_PREFIX, replica, broker_epoch, 0))
        written = b"".join(body)
        return _HEAD.pack(len(written) + 10, FETCH, version, correlation_id, len(client_id)) + written


class PartitionResponse(NamedTuple):
    """One partition of a fetch response."""

    topic_id: bytes
    partition_index: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


def read_request(frame: memoryview) -> FollowerFetchRequest | None:
    """Decode a frame without its length prefix; None if it needs the compiled codec."""
    try:
        return _decode_request(frame)
    except (error, IndexError):  # truncated
        return None


def _decode_request(frame: memoryview) -> FollowerFetchRequest | None:
    api_key, version, correlation_id, name_bytes = _read_head(frame)
    if api_key != FETCH or not OLDEST <= version <= NEWEST or name_bytes < 0 or frame[10 + name_bytes]:
        return None
    position = 11 + name_bytes
    wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics = _read_request(frame, position)
    if isolation or not 0 < topics <= COUNT_MAX + 1 or session_epoch <= 0:
        return None
    position += _REQUEST.size
    partitions: list[FetchPartition] = []
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
            partitions.append(
                _new(FetchPartition, (topic_id, index, epoch, offset, last_epoch, start_offset, bytes_max))
            )
            position += _PARTITION.size
        if frame[position]:
            return None
        position += 1
    *prefix, replica, broker_epoch, tags = _read_replica(frame, position)
    if tuple(prefix) != _REPLICA_PREFIX or replica < 0 or tags or position + _REPLICA.size != len(frame):
        return None
    numbers = version, correlation_id, wait_ms, min_bytes, max_bytes, session_id, session_epoch
    return _new(FollowerFetchRequest, (*numbers, partitions, replica, broker_epoch))


def write_response(correlation_id: int, session_id: int, topics: Mapping[bytes, Sequence[Any]]) -> list[Piece] | None:
    """Encode a whole response frame, with partitions by topic id; None if it needs the compiled codec."""
    if len(topics) > COUNT_MAX:
        return None
    pieces: list[Piece] = []
    length = -4  # the length prefix does not count itself
    head = part = bytearray(_RESPONSE.size)
    for topic_id, partitions in topics.items():
        part += topic_id
        part += uvarint(len(partitions) + 1)
        for each in partitions:
            if each.error_code or each.diverging_epoch is not None:
                return None
            part += _write_partition_response(
                each.partition_index, 0, each.high_watermark, -1, each.log_start_offset, 0, -1
            )
            records = each.records
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
    _RESPONSE.pack_into(head, 0, length + len(part), correlation_id, 0, 0, 0, session_id, len(topics) + 1)
    return pieces


def read_response(frame: memoryview) -> tuple[int, list[PartitionResponse]] | None:
    """Decode session id and partitions from a frame without its length prefix; None if it needs the compiled codec."""
    try:
        return _decode_response(frame)
    except (error, IndexError):
        return None


def _decode_response(frame: memoryview) -> tuple[int, list[PartitionResponse]] | None:
    _, tags, throttle_ms, code, session_id, topics = _read_response(frame)
    if tags or throttle_ms or code or not 0 < topics <= COUNT_MAX + 1:
        return None
    position = _RESPONSE_BODY.size
    partitions: list[PartitionResponse] = []
    for _ in range(topics - 1):
        start, position = position, position + UUID_BYTES
        topic_id, count = frame[start:position].tobytes(), frame[position]
        if not 0 < count <= COUNT_MAX + 1:
            return None
        position += 1
        for _ in range(count - 1):
            index, code, high_watermark, _, start_offset, aborted, _ = _read_partition_response(frame, position)
            if code or aborted:
                return None
            position += _PARTITION_RESPONSE.size
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
            partitions.append(
                _new(PartitionResponse, (topic_id, index, high_watermark, start_offset, frame[position:end]))
            )
            position = end + 1
        if frame[position]:
            return None
        position += 1
    return None if frame[position] else (session_id, partitions)
