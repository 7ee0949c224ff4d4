"""Produce requests that repeat an earlier one of their connection, but for the correlation id and the batch.

    | API key, version | correlation id | client id, acks, timeout, topic, partition | length | batch | tags |
      same              differs          same: key of the cached request             both follow from the frame's size

The cached request knows the partition and holds the response as a template in which three numbers and the correlation
id are replaced. The batch is accepted and appended by the functions that the handler calls.

Responses of one turn are sent as one buffer. Batches of one turn for one partition with followers wait for the high
watermark together (`PendingAcks`), because followers fetch them together.
"""

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.fastpath.produce_acks import ReplicatedAcks
from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE, Partition
from moldau.broker.partitions.produce_append import append_produced
from moldau.broker.partitions.produce_validation import accept
from moldau.broker.requests.fast_path import FastPath, FastPathConnection
from moldau.broker.requests.produce_topics import find_topic
from moldau.broker.runtime.record_sampler import RecordSampler
from moldau.model.errors import KafkaError
from moldau.model.protocol import ACKS_ALL, ACKS_LEADER
from moldau.storage.log import Log
from moldau.wire.codec import request_decoder
from moldau.wire.framing import RequestHeader, frame_response, parse_request_header
from moldau.wire.messages import ProduceRequest, ProduceResponse
from moldau.wire.primitives import uvarint

if TYPE_CHECKING:
    from moldau.broker.fastpath.hosts import ProduceFastPathHost
    from moldau.broker.requests.context import RequestContext
    from moldau.broker.runtime.meters import ApiMeter
    from moldau.model.ports import Piece

PRODUCE: Final = ProduceRequest.API_KEY
OLDEST: Final = 5  # from this version on the three numbers of a response are adjacent
FLEXIBLE_FROM: Final = 9
CACHED_REQUESTS_MAX: Final = 64  # of one connection
EXTENTS_MAX: Final = 256  # sizes of requests, likewise
MISSES_MAX: Final = 64  # in a row: then requests of another shape replace the cached ones
NO_TAGS: Final = bytes(3)  # of the partition, the topic and the request, in a flexible version
HEAD_BYTES: Final = 8  # API key, version and correlation id

_SENTINELS: Final = (0x0102030405060708, 0x1112131415161718, 0x2122232425262728)
_CORRELATION: Final = Struct(">i")
_CORRELATION_POSITION: Final = 4
_NUMBERS: Final = Struct(">qqq")
_LENGTH: Final = Struct(">i")

_pack_correlation = _CORRELATION.pack_into
_pack_numbers = _NUMBERS.pack_into

RejectBatches = Callable[[ProduceRequest, KafkaError, "RequestContext[Any]"], ProduceResponse]


class CachedRequest:
    """One request that was handled before: its partition, and the template of its response."""

    __slots__ = (
        "_numbers_position",
        "_response",
        "_sampler",
        "_settings",
        "acks_all",
        "partition",
        "timeout_ms",
        "topic",
        "version",
    )

    def __init__(self, partition: Partition, request: ProduceRequest, version: int, sampler: RecordSampler) -> None:
        topic = request.topic_data[0]
        self._sampler = sampler
        self.partition = partition
        self.version = version
        self.acks_all = request.acks == ACKS_ALL
        self.timeout_ms = request.timeout_ms
        self.topic = _without_batch(topic)
        self._settings = partition.log.settings
        self._response = _response_template(topic, version)
        self._numbers_position = self._response.index(_NUMBERS.pack(*_SENTINELS))

    def append(self, batch: memoryview, correlation_id: int, now_ms: int, acks: "PendingAcks") -> bool:
        """Append the batch and add its response to `acks`; False if that takes the handler.

        Raises the error for the producer. Nothing has been appended then, nor when it returns False.
        """
        partition = self.partition
        log = partition.log
        if not partition.role.is_leader or log.settings is not self._settings:
            return False
        accepted = accept(batch, log, now_ms, self.version, self._sampler)
        if accepted is None:
            return False
        appended = append_produced(partition, accepted, now_ms, self.acks_all, False)
        base_offset, last_offset, _, log_append_time_ms = appended
        if acks.partition is not None:
            acks.requests.append((self, correlation_id))
        responses = acks.responses
        start = len(responses)
        responses += self._response
        _pack_correlation(responses, start + _CORRELATION_POSITION, correlation_id)
        _pack_numbers(responses, start + self._numbers_position, base_offset, log_append_time_ms, log.start_offset)
        acks.count += 1
        if last_offset >= acks.end_offset:
            acks.end_offset = last_offset + 1
        return True


class PendingAcks:
    """Responses of one turn that are sent together: when the turn ends, or when other replicas have their batches."""

    __slots__ = ("count", "end_offset", "partition", "requests", "responses", "started_ms", "timeout_ms")

    def __init__(self, partition: Partition | None, started_ms: float, timeout_ms: int) -> None:
        self.partition = partition  # None: the leader's own append is enough
        self.timeout_ms = timeout_ms
        self.started_ms = started_ms
        self.count = 0
        self.end_offset = 0
        self.responses = bytearray()
        self.requests: list[tuple[CachedRequest, int]] = []  # and the correlation id of each, where others follow


class ProduceFastPath:
    """The cached requests of one connection, and the responses of the turn."""

    __slots__ = (
        "_acks",
        "_all_acks",
        "_authorizer",
        "_broker",
        "_cached",
        "_clock",
        "_coalescer",
        "_connection",
        "_end",
        "_extents",
        "_generation",
        "_head",
        "_is_flexible",
        "_meter",
        "_misses",
        "_now_ms",
        "_read",
        "_reject_batches",
        "_replicated",
        "_started_ms",
        "_transport",
    )

    tolerates_delay: Final = False

    def __init__(
        self,
        connection: FastPathConnection,
        broker: "ProduceFastPathHost",
        meter: "ApiMeter",
        reject_batches: RejectBatches,
    ) -> None:
        self._meter = meter
        self._broker = broker
        self._clock = broker.clock
        self._coalescer = broker.write_coalescer
        self._connection = connection
        self._transport = connection.transport
        self._reject_batches = reject_batches
        self._replicated = ReplicatedAcks(broker.clock, connection.responses, meter, self._reject_cached)
        self._all_acks: list[PendingAcks] = []  # of the current turn, in request order
        self._acks: PendingAcks | None = None  # the last of them
        self._started_ms = 0.0  # of the turn's first request: a turn is short, so all requests share one time
        self._now_ms = 0
        self._cached: dict[bytes, CachedRequest] = {}
        self._extents: dict[int, tuple[int, int, bytes]] = {}  # of the batch, by the size of the frame
        self._misses = 0
        self._authorizer = broker.authorizer
        self._generation = broker.authorizer.generation  # of the ACLs that allowed the cached requests
        self._reset(b"", HEAD_BYTES, 0)

    def _reset(self, head: bytes, end: int, version: int) -> None:
        self._cached.clear()
        self._extents.clear()
        self._misses = 0
        self._head = head
        self._end = end  # position of the batch's length
        self._is_flexible = version >= FLEXIBLE_FROM
        self._read = Struct(f">4si{end - HEAD_BYTES}s").unpack_from

    # -- one request

    def try_handle(self, frame: memoryview) -> bool:
        end = self._end
        if len(frame) < end + HEAD_BYTES:
            return False
        head, correlation_id, key = self._read(frame)
        if head != self._head:
            return False
        cached = self._cached.get(key)
        if cached is None or self._authorizer.generation != self._generation:
            return False
        batch = self._batch(frame, end)
        if batch is None:
            return False
        self._misses = 0
        partition = cached.partition
        waits_on = partition if cached.acks_all and not partition.role.leads_alone else None
        acks = self._acks
        if acks is None or acks.partition is not waits_on or acks.timeout_ms != cached.timeout_ms:
            acks = self._add_acks(waits_on, cached.timeout_ms)
        coalescer = self._coalescer
        was_open = coalescer.is_open
        coalescer.is_open = self._transport.has_more_bytes or not coalescer.is_empty
        try:
            if cached.append(batch, correlation_id, self._now_ms, acks):
                return True
        except KafkaError as error:
            self._reject(frame, error)
            return True
        coalescer.is_open = was_open
        return False

    def _add_acks(self, waits_on: Partition | None, timeout_ms: int) -> PendingAcks:
        if not self._all_acks:
            self._started_ms, self._now_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        acks = self._acks = PendingAcks(waits_on, self._started_ms, timeout_ms)
        self._all_acks.append(acks)
        return acks

    def _batch(self, frame: memoryview, end: int) -> memoryview | None:
        size = len(frame)
        extent = self._extents.get(size)
        if extent is None:
            extent = self._add_extent(size)
        start, stop, length = extent
        if frame[end:start] != length or (self._is_flexible and frame[stop:] != NO_TAGS):  # unknown tagged fields
            return None
        return frame[start:stop]

    def _add_extent(self, size: int) -> tuple[int, int, bytes]:
        """Where the batch in a frame of this size starts and stops, and its length as it is encoded before it."""
        if len(self._extents) >= EXTENTS_MAX:
            self._extents.clear()
        stop = size - len(NO_TAGS) if self._is_flexible else size
        for length_bytes in (1, 2, 3, 4, 5) if self._is_flexible else (4,):
            start = self._end + length_bytes
            length = uvarint(stop - start + 1) if self._is_flexible else _LENGTH.pack(stop - start)
            if len(length) == length_bytes:
                break
        extent = self._extents[size] = start, stop, length
        return extent

    # -- responses

    def flush(self) -> None:
        """Send what the leader alone acknowledges; the rest waits for other replicas."""
        if not self._all_acks:
            return
        all_acks, self._all_acks, self._acks = self._all_acks, [], None
        connection = self._connection
        now_ms = connection.last_active_ms = self._clock.monotonic_ms()
        for acks in all_acks:
            if not acks.count:
                continue
            if acks.partition is None:
                self._meter.finished_together(acks.count, now_ms - acks.started_ms)
                connection.responses.send([acks.responses])
            else:
                self._replicated.wait_for(acks, now_ms)

    def _reject(self, frame: memoryview, error: KafkaError) -> None:
        """The batch is rejected: respond as the handler does."""
        self.flush()
        header, position = parse_request_header(frame)
        request, _ = request_decoder(PRODUCE, header.api_version)(frame, position)
        started_ms = self._clock.monotonic_ms()
        pieces = self._rejection(request, header, error)
        self._meter.finished(self._clock.monotonic_ms() - started_ms)
        self._connection.responses.send(pieces)

    def _reject_cached(self, cached: CachedRequest, correlation_id: int, error: KafkaError) -> "list[Piece]":
        header = RequestHeader(PRODUCE, cached.version, correlation_id, "")
        return self._rejection(ProduceRequest(topic_data=[cached.topic]), header, error)

    def _rejection(self, request: ProduceRequest, header: RequestHeader, error: KafkaError) -> "list[Piece]":
        context = self._connection.context(header, self._clock.monotonic_ms())
        response = self._reject_batches(request, error, context)
        return frame_response(PRODUCE, header.api_version, header.correlation_id, response)

    def close(self) -> None:
        self._replicated.close()

    # -- the cache

    def learn(
        self,
        frame: memoryview,
        request: ProduceRequest,
        context: "RequestContext[ProduceFastPathHost]",
        response: Any,  # noqa: ARG002 - the common signature
    ) -> None:
        self._misses += 1
        version = context.api_version
        if request.acks not in (ACKS_ALL, ACKS_LEADER) or request.transactional_id is not None or version < OLDEST:
            return
        if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return
        topic = request.topic_data[0]
        partition = self._partition(topic, topic.partition_data[0].index, context)
        records = topic.partition_data[0].records
        sampler = context.connection.record_sampler if context.connection is not None else None
        if partition is None or records is None or sampler is None or not _appends_unchanged(partition.log):
            return
        end = _end_before_batch(frame, len(records), version)
        if end is None:
            return
        self._drop_outdated()
        head = bytes(frame[:4])
        if (head, end) != (self._head, self._end):
            if self._cached and self._misses < MISSES_MAX:
                return
            self._reset(head, end, version)
        if len(self._cached) >= CACHED_REQUESTS_MAX:
            self._cached.clear()
        self._cached[bytes(frame[HEAD_BYTES:end])] = CachedRequest(partition, request, version, sampler)

    def _drop_outdated(self) -> None:
        """Drop requests that were authorized before the ACLs changed."""
        if self._authorizer.generation != self._generation:
            self._cached.clear()
            self._generation = self._authorizer.generation

    def _partition(self, topic: Any, index: int, context: "RequestContext[ProduceFastPathHost]") -> Partition | None:
        """The partition of a request, if its principal may write to the topic."""
        name, rejection = find_topic(topic, context, is_audited=False)
        if rejection is not None:
            return None
        try:
            return self._broker.partitions.get(name, index, topic.topic_id)
        except KafkaError:
            return None


def create(
    connection: FastPathConnection,
    request: Any,  # noqa: ARG001 - the common signature
    context: "RequestContext[ProduceFastPathHost]",
    meter: "ApiMeter",
    *,
    reject_batches: RejectBatches,
) -> FastPath:
    return ProduceFastPath(connection, context.broker, meter, reject_batches)


def _appends_unchanged(log: Log) -> bool:
    """Whether the log appends batches as they are and acknowledges them once they are written."""
    return log.stores_batches_unchanged and log.settings.flush_messages != FLUSH_EVERY_MESSAGE


def _end_before_batch(frame: memoryview, batch_bytes: int, version: int) -> int | None:
    """The position of the batch's length, if nothing follows the batch but the end of the request."""
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


def _response_template(topic: Any, version: int) -> bytes:
    """The response to a request for this partition, with sentinels for the numbers that are replaced."""
    base_offset, log_append_time_ms, log_start_offset = _SENTINELS
    data = ProduceResponse.PartitionProduceResponse(
        index=topic.partition_data[0].index,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
    )
    response = ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[data])
        ]
    )
    return b"".join(frame_response(PRODUCE, version, 0, response))  # type: ignore[arg-type]
