"""A producer says the same thing again and again, but for the batch: what was understood once is remembered.

Two produce requests of one client to one partition differ in the correlation id and the batch. So all the rest is
compared with requests that were taken apart before, instead of being taken apart again, and the answer is the earlier
one with other numbers in it. Whatever is not exactly so goes the long way, through decoder, handler and encoder.

What one turn brings for one partition that others follow is waited for together: its followers fetch it together.
"""

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.internal_topics import INTERNAL
from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE, Partition
from moldau.broker.partitions.produce_validation import ZSTD_FROM_VERSION
from moldau.broker.runtime.meters import ApiMeter
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicId
from moldau.records.header import TRANSACTIONAL
from moldau.records.validation import validate_produced
from moldau.storage.log import Log
from moldau.wire.framing import RequestHeader, frame_response
from moldau.wire.messages import ProduceRequest, ProduceResponse
from moldau.wire.primitives import uvarint

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

PRODUCE: Final = 0  # the API's number
ALL: Final = -1  # of acks
LEADER: Final = 1
OLDEST: Final = 5  # from here on an answer has its three numbers side by side
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13
KNOWN_MAX: Final = 64  # requests remembered of one connection
PLACES_MAX: Final = 256  # sizes of requests, likewise
MISSES_MAX: Final = 64  # in a row, then what is remembered is of no use any more
NO_TAGS: Final = bytes(3)  # of the partition, the topic and the request, in a flexible version
HEAD_BYTES: Final = 8  # API, version and correlation id

_SENTINELS: Final = (0x0102030405060708, 0x1112131415161718, 0x2122232425262728)
_CORRELATION: Final = Struct(">i")
_CORRELATION_POSITION: Final = 4
_NUMBERS: Final = Struct(">qqq")
_LENGTH: Final = Struct(">i")

_pack_correlation = _CORRELATION.pack_into
_pack_numbers = _NUMBERS.pack_into


class Known:
    """One request that came before: where its batch goes, and what it is answered."""

    __slots__ = (
        "_after_max_ms",
        "_answer",
        "_before_max_ms",
        "_bytes_max",
        "_numbers_position",
        "_settings",
        "_takes_zstd",
        "asks_all",
        "partition",
        "said",
        "timeout_ms",
        "version",
    )

    def __init__(self, partition: Partition, request: ProduceRequest, version: int) -> None:
        topic = request.topic_data[0]
        self.partition = partition
        self.version = version
        self.asks_all = request.acks == ALL
        self.timeout_ms = request.timeout_ms
        self.said = _without_batch(topic)
        settings = self._settings = partition.log.settings
        self._takes_zstd = version >= ZSTD_FROM_VERSION
        self._bytes_max = settings.max_message_bytes
        self._before_max_ms = settings.message_timestamp_before_max_ms
        self._after_max_ms = settings.message_timestamp_after_max_ms
        self._answer = _answer(topic, version)
        self._numbers_position = self._answer.index(_NUMBERS.pack(*_SENTINELS))

    def append(self, batch: memoryview, correlation_id: int, now_ms: int, run: "Run") -> bool:
        """Whether it is appended and answered; if it is not as simple as it was, it is neither.

        Raises what the log says against the batch.
        """
        partition = self.partition
        log = partition.log
        if not partition.is_leader or log.settings is not self._settings:
            return False
        try:
            header = validate_produced(batch, is_zstd_allowed=self._takes_zstd)
        except KafkaError:
            return False
        oldest, newest = header[7], header[8]
        if (
            header[5] & TRANSACTIONAL
            or len(batch) > self._bytes_max
            or not now_ms - self._before_max_ms <= oldest <= newest
            or newest > now_ms + self._after_max_ms
        ):
            return False
        if run.partition is not None:
            assert partition.leading is not None
            partition.leading.check_enough()
        base_offset, last_offset, _, log_append_time_ms = partition.append(batch, header, now_ms)
        partition.traffic.produces += 1
        if run.partition is not None:
            run.asked.append((self, correlation_id))
        answers = run.answers
        start = len(answers)
        answers += self._answer
        _pack_correlation(answers, start + _CORRELATION_POSITION, correlation_id)
        _pack_numbers(answers, start + self._numbers_position, base_offset, log_append_time_ms, log.start_offset)
        run.count += 1
        if last_offset >= run.end_offset:
            run.end_offset = last_offset + 1
        return True


class Run:
    """Requests of one turn that are answered together: at once, or once other replicas have what they brought."""

    __slots__ = ("answers", "asked", "count", "end_offset", "partition", "started_ms", "timeout_ms")

    def __init__(self, partition: Partition | None, started_ms: float, timeout_ms: int) -> None:
        self.partition = partition  # whose other replicas have to be waited for
        self.timeout_ms = timeout_ms  # and for how long
        self.started_ms = started_ms
        self.answers = bytearray()
        self.count = 0
        self.end_offset = 0
        self.asked: list[tuple[Known, int]] = []  # with their correlation ids, where there may be a refusal yet


class Repetition:
    """The produce requests that one connection is known to send. All known ones are of one length without the batch."""

    __slots__ = (
        "_broker",
        "_clock",
        "_end",
        "_head",
        "_is_flexible",
        "_known",
        "_misses",
        "_now_ms",
        "_places",
        "_read",
        "_run",
        "_started_ms",
        "meter",
        "runs",
    )

    def __init__(self, broker: "Broker", meter: ApiMeter) -> None:
        self.meter = meter
        self._broker = broker
        self._clock = broker.clock
        self.runs: list[Run] = []  # of the turn that is under way, in the order they came
        self._run: Run | None = None  # the last of them
        self._started_ms = 0.0  # when the first of them came: a turn is short, so all share one time
        self._now_ms = 0
        self._known: dict[bytes, Known] = {}
        self._places: dict[int, tuple[int, int, bytes]] = {}  # of the batch, by the size of the request
        self._misses = 0
        self._begin(b"", HEAD_BYTES, 0)

    def _begin(self, head: bytes, end: int, version: int) -> None:
        self._known.clear()
        self._places.clear()
        self._misses = 0
        self._head = head
        self._end = end  # where the length of the batch stands
        self._is_flexible = version >= FLEXIBLE_FROM
        self._read = Struct(f">4si{end - HEAD_BYTES}s").unpack_from

    def append(self, frame: memoryview) -> bool:
        """Whether this is a request that is known: then it is appended, and its answer is the last of the last run.

        When it is not, or a `KafkaError` is raised, nothing has been appended.
        """
        end = self._end
        if len(frame) < end + HEAD_BYTES:
            return False
        head, correlation_id, said = self._read(frame)
        if head != self._head:
            return False
        known = self._known.get(said)
        if known is None:
            return False
        batch = self._batch(frame, end)
        if batch is None:
            return False
        self._misses = 0
        partition = known.partition
        waits_on = partition if known.asks_all and not partition.leads_alone else None
        run = self._run
        if run is None or run.partition is not waits_on or run.timeout_ms != known.timeout_ms:
            run = self._add_run(waits_on, known.timeout_ms)
        return known.append(batch, correlation_id, self._now_ms, run)

    def _add_run(self, waits_on: Partition | None, timeout_ms: int) -> Run:
        if not self.runs:
            self._started_ms, self._now_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        run = self._run = Run(waits_on, self._started_ms, timeout_ms)
        self.runs.append(run)
        return run

    def take_runs(self) -> list[Run]:
        runs, self.runs, self._run = self.runs, [], None
        return runs

    def _batch(self, frame: memoryview, end: int) -> memoryview | None:
        size = len(frame)
        place = self._places.get(size)
        if place is None:
            place = self._add_place(size)
        start, stop, length = place
        if frame[end:start] != length or (self._is_flexible and frame[stop:] != NO_TAGS):  # fields that we do not know
            return None
        return frame[start:stop]

    def _add_place(self, size: int) -> tuple[int, int, bytes]:
        """Where the batch of a request of this size begins and ends, and how its length is written before it."""
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        stop = size - len(NO_TAGS) if self._is_flexible else size
        for length_bytes in (1, 2, 3, 4, 5) if self._is_flexible else (4,):
            start = self._end + length_bytes
            length = uvarint(stop - start + 1) if self._is_flexible else _LENGTH.pack(stop - start)
            if len(length) == length_bytes:
                break
        place = self._places[size] = start, stop, length
        return place

    def learn(self, frame: memoryview, header: RequestHeader, request: ProduceRequest) -> None:
        """Remember a request that went the long way, if another like it could be answered without."""
        self._misses += 1
        version = header.api_version
        if request.acks not in (ALL, LEADER) or request.transactional_id is not None or version < OLDEST:
            return
        if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return
        topic = request.topic_data[0]
        partition = self._partition(topic, topic.partition_data[0].index, version)
        records = topic.partition_data[0].records
        if partition is None or records is None or not _is_plain(partition.log):
            return
        end = _end_before_batch(frame, len(records), version)
        if end is None:
            return
        head = bytes(frame[:4])
        if (head, end) != (self._head, self._end):
            if self._known and self._misses < MISSES_MAX:
                return
            self._begin(head, end, version)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[bytes(frame[HEAD_BYTES:end])] = Known(partition, request, version)

    def _partition(self, topic: Any, index: int, version: int) -> Partition | None:
        broker = self._broker
        name: str = topic.name
        if version >= TOPIC_IDS_FROM:
            known = broker.image.topics_by_id.get(TopicId(topic.topic_id))
            if known is None:
                return None
            name = known.name
        if not broker.allows_all or name in INTERNAL:
            return None
        try:
            return broker.partitions.get(name, index, topic.topic_id)
        except KafkaError:
            return None


def _is_plain(log: Log) -> bool:
    """Whether it takes batches as they are, and answers as soon as they are written."""
    return log.stores_batches_unchanged and log.settings.flush_messages != FLUSH_EVERY_MESSAGE


def _end_before_batch(frame: memoryview, batch_bytes: int, version: int) -> int | None:
    """Where the length of the batch stands, if nothing follows the batch but the end of the request."""
    is_flexible = version >= FLEXIBLE_FROM
    stop = len(frame) - (len(NO_TAGS) if is_flexible else 0)
    start = stop - batch_bytes
    length = uvarint(batch_bytes + 1) if is_flexible else _LENGTH.pack(batch_bytes)
    end = start - len(length)
    if end < HEAD_BYTES or frame[end:start] != length or (is_flexible and frame[stop:] != NO_TAGS):
        return None
    return end


def _without_batch(topic: Any) -> Any:
    data = ProduceRequest.PartitionProduceData(index=topic.partition_data[0].index, records=None)
    return ProduceRequest.TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[data])


def _answer(topic: Any, version: int) -> bytes:
    """What a request for this one partition is answered, with numbers in it that are to be replaced."""
    base_offset, log_append_time_ms, log_start_offset = _SENTINELS
    answer = ProduceResponse.PartitionProduceResponse(
        index=topic.partition_data[0].index,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
    )
    response = ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer])
        ]
    )
    return b"".join(bytes(piece) for piece in frame_response(PRODUCE, version, 0, response))  # type: ignore[arg-type]
