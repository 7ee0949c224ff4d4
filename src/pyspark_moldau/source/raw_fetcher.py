"""One task: one range of one partition, fetched as raw batches and decoded while the next fetch is under way."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import RETRIABLE, ConnectionLost, ResponseTimeout, Unreachable
from moldau.client.metadata import TopicView
from moldau.client.settings import ClientSettings
from moldau.client.types import EARLIEST, LATEST, FetchResult, Isolation
from moldau.model.errors import CorruptMessage, KafkaError, OffsetOutOfRange
from moldau.model.ids import NO_NODE
from moldau.model.units import SECOND_MS, KiB, MiB
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from pyspark_moldau.codec.batch_iterator import Batch, BatchIterator
from pyspark_moldau.codec.decoder import DecodeRange, decode_batches
from pyspark_moldau.options.source_options import SourceOptions
from pyspark_moldau.source.offset_ranges import OffsetRange
from pyspark_moldau.source.read_plan import RecordsLost
from pyspark_moldau.source.topic_ids import topic_id_text
from pyspark_moldau.topic_lookup import look_up_topic

log = logging.getLogger("pyspark_moldau")

# An answer that fits the buffer of a busy connection is received without a copy more: above, buffers grow and move.
_FETCH_BYTES: Final = MiB - 4 * KiB
_WAIT_MS: Final = 500
_TURNS_TO_SEND: Final = 3  # of the event loop, after which a request is in the socket
_STALL_S: Final = 1.0  # for so long the loop stood still: a failure then may be ours
_STALL_FRACTION: Final = 0.1  # or for such a part of the time that a fetch has
_RETRY_S: Final = 0.05  # before the same is asked again
_EMPTY_RESPONSES: Final = 3  # in a row, before we believe that nothing is there
_EMPTY_WAIT_MS: Final = 50  # of those after the first: what compaction has left nothing of costs little
_REMOTE_WAIT_MS_MAX: Final = 10 * SECOND_MS
_EARLIEST_LOCAL: Final = -4  # in ListOffsets: what is before it, the cluster has to get from elsewhere (KIP-405)
_FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable)


def read_raw(wanted: OffsetRange, options: SourceOptions) -> Iterator[Any]:
    """The rows of the range as Arrow batches."""
    loop = asyncio.new_event_loop()
    client = AsyncClient(
        SocketNetwork(),
        SystemClock(),
        system_random(),
        options.kafka.bootstrap_servers,
        settings=_client_settings(options),
    )
    task = RangeFetcher(wanted, options, client, loop)
    try:
        yield from task.rows()
    finally:
        task.close()


def _client_settings(options: SourceOptions) -> ClientSettings:
    kafka = options.kafka
    return ClientSettings(
        client_id=kafka.java.get("client.id", "moldau-spark"),
        request_timeout_ms=kafka.number("request.timeout.ms", 30_000),
        total_timeout_ms=options.poll_timeout_ms,
        retry_backoff_ms=kafka.number("retry.backoff.ms", 100),
        retry_backoff_max_ms=kafka.number("retry.backoff.max.ms", 1000),
    )


@dataclass(slots=True)
class RangeFetcher:
    """The loop of one task. Leaders that move and connections that break are the client's business."""

    wanted: OffsetRange
    options: SourceOptions
    client: AsyncClient
    loop: asyncio.AbstractEventLoop
    _pending_fetch: asyncio.Task[FetchResult] | None = None
    _loop_stopped_s: float = 0.0  # when the loop stopped turning
    _deadline_s: float = 0.0
    _empty_responses: int = 0

    def rows(self) -> Iterator[Any]:
        position = self.wanted.from_offset
        self._check_topic_id(self.loop.run_until_complete(look_up_topic(self.client, self.wanted.topic)))
        self._extend_deadline()
        while position < self.wanted.until_offset:
            try:
                fetched = self._next_response(position)
            except OffsetOutOfRange:
                position = self._skip_lost_records(position)
                continue
            self._check_topic_id(self.client.metadata.topics.get(self.wanted.topic))
            batches, on_step = self._batches_in(fetched, position)
            place = self._decode_range(position)
            if on_step == position:
                if self._is_gap(fetched, position) or self._is_truncated(fetched, position):
                    return
                self._pause(position)
                continue
            position = on_step
            self._empty_responses = 0
            if position < self.wanted.until_offset:
                self._begin_fetch(position)
            yield from decode_batches(batches, place)
            self._extend_deadline()  # whatever time was taken over the rows

    def close(self) -> None:
        if self._pending_fetch is not None:
            self._pending_fetch.cancel()
            self.loop.run_until_complete(asyncio.gather(self._pending_fetch, return_exceptions=True))
        self.loop.run_until_complete(self.client.close())
        self.loop.close()

    def _decode_range(self, position: int) -> DecodeRange:
        # A batch may begin before the offset that was asked for, with records that we have or that are deleted.
        wanted = self.wanted
        return DecodeRange(wanted.topic, wanted.partition, position, wanted.until_offset, self.options.includes_headers)

    def _begin_fetch(self, position: int) -> None:
        """Send the request now, so that the broker works and the answer travels while we decode the last one."""
        kafka = self.options.kafka
        fetch = self.client.fetch(
            self.wanted.topic,
            self.wanted.partition,
            position,
            max_bytes=kafka.number("max.partition.fetch.bytes", _FETCH_BYTES),
            min_bytes=kafka.number("fetch.min.bytes", 1),
            max_wait_ms=self._wait_ms(),
            isolation=self._isolation(),
        )
        self._pending_fetch = self.loop.create_task(fetch)
        for _ in range(_TURNS_TO_SEND):
            self.loop.run_until_complete(asyncio.sleep(0))
        self._loop_stopped_s = time.monotonic()

    def _wait_ms(self) -> int:
        given_ms = self.options.kafka.number("fetch.max.wait.ms", _WAIT_MS)
        if 0 < self._empty_responses < _EMPTY_RESPONSES:
            return min(given_ms, _EMPTY_WAIT_MS)
        # Some clusters take as long to get records from elsewhere as we are ready to wait.
        return max(given_ms, min(given_ms * max(self._empty_responses, 1), _REMOTE_WAIT_MS_MAX))

    def _next_response(self, position: int) -> FetchResult:
        stall_s = min(_STALL_S, self.options.poll_timeout_ms / 1000 * _STALL_FRACTION)
        was_stalled = self._pending_fetch is not None and time.monotonic() - self._loop_stopped_s > stall_s
        try:
            return self._await_response(position)
        except _FAILURES:
            if not was_stalled:
                raise
        # The loop stood still while rows were used: time ran out, though the answer may have come long ago.
        return self._await_response(position)

    def _await_response(self, position: int) -> FetchResult:
        if self._pending_fetch is None:
            self._begin_fetch(position)
        assert self._pending_fetch is not None
        task, self._pending_fetch = self._pending_fetch, None
        return self.loop.run_until_complete(task)

    def _batches_in(self, fetched: FetchResult, position: int) -> tuple[list[Batch], int]:
        aborted = fetched.aborted if self.options.kafka.reads_committed else ()
        iterator = BatchIterator(fetched.records, position, self.wanted.until_offset, aborted)
        batches = list(iterator)
        if iterator.next_offset <= position and len(fetched.records):
            raise CorruptMessage(f"the answer to a fetch at offset {position} holds no whole batch from there on")
        return batches, iterator.next_offset

    def _is_gap(self, fetched: FetchResult, position: int) -> bool:
        """Nothing came although the log goes further: has compaction left nothing in the rest of the range?

        One such answer proves nothing: Kafka gives it too when records that it keeps elsewhere do not come in time. So
        several of them are wanted, and that this part of the log is not kept elsewhere.
        """
        if self._end_in(fetched) < self.wanted.until_offset or fetched.preferred_read_replica != NO_NODE:
            self._empty_responses = 0
            return False
        self._empty_responses += 1
        if self._empty_responses < _EMPTY_RESPONSES or not self._is_local(position):
            return False
        log.warning(
            "There are no records in %s from offset %d to %d: it was asked %d times, and compaction leaves such gaps.",
            *(self._partition_name(), position, self.wanted.until_offset - 1, self._empty_responses),
        )
        return True

    def _is_truncated(self, fetched: FetchResult, position: int) -> bool:
        """The log ends before the range does, and has not grown again for as long as we wait: is the rest lost?

        A new leader learns only after a while how far the log is committed. Who allows no losses is told of the time.
        """
        end = self._end_in(fetched)
        is_over = self._is_past_deadline() and fetched.preferred_read_replica == NO_NODE and end <= position
        if not is_over or self.options.fails_on_data_loss:
            return False
        self._report_data_loss(
            f"{self._partition_name()} was to be read up to offset {self.wanted.until_offset} and ends at {end} now"
        )
        return True

    def _end_in(self, fetched: FetchResult) -> int:
        return fetched.last_stable_offset if self.options.kafka.reads_committed else fetched.high_watermark

    def _is_local(self, position: int) -> bool:
        try:
            return position >= self._offset_at(_EARLIEST_LOCAL)
        except KafkaError as error:
            if error.code in RETRIABLE:
                raise
            return True  # a cluster that knows of no other place

    def _skip_lost_records(self, position: int) -> int:
        """The log does not have this offset any more, or not yet again: go on where it begins, if that is allowed."""
        earliest, latest = self._offset_at(EARLIEST), self._offset_at(LATEST)
        if earliest <= position <= latest:  # whoever refused it knew less of the log: it may know more by now
            self._pause(position)
            return position
        what = f"offset {position} of {self._partition_name()} is gone: there are offsets {earliest} to {latest}"
        self._report_data_loss(what)
        self._extend_deadline()
        self._empty_responses = 0
        return earliest if position < earliest else self.wanted.until_offset

    def _offset_at(self, time_ms: int) -> int:
        where = self.wanted
        asked = self.client.list_offset(where.topic, where.partition, time_ms, isolation=self._isolation())
        return self.loop.run_until_complete(asked).offset

    def _check_topic_id(self, view: TopicView | None) -> None:
        """After each fetch: the client finds its way to a topic that has taken the name meanwhile."""
        if not self.wanted.topic_id or view is None:
            return
        seen = topic_id_text(view.topic_id)
        if seen and seen != self.wanted.topic_id:
            self._report_data_loss(f"topic {self.wanted.topic} was deleted and created again: its id is {seen} now")
            self.wanted = self.wanted._replace(topic_id=seen)  # told once

    def _report_data_loss(self, what: str) -> None:
        if self.options.fails_on_data_loss:
            raise RecordsLost(
                f"Some records may have been lost: {what}. Set 'failOnDataLoss' to false to go on all the same."
            )
        log.warning("Some records may have been lost: %s.", what)

    def _isolation(self) -> Isolation:
        return Isolation.READ_COMMITTED if self.options.kafka.reads_committed else Isolation.READ_UNCOMMITTED

    def _extend_deadline(self) -> None:
        self._deadline_s = time.monotonic() + self.options.poll_timeout_ms / 1000

    def _is_past_deadline(self) -> bool:
        return time.monotonic() > self._deadline_s

    def _pause(self, position: int) -> None:
        """Before the same is asked again, if there is time for that."""
        if self._is_past_deadline():
            raise TimeoutError(self._timeout_message(position))
        self.loop.run_until_complete(asyncio.sleep(_RETRY_S))

    def _partition_name(self) -> str:
        return f"{self.wanted.topic}-{self.wanted.partition}"

    def _timeout_message(self, position: int) -> str:
        return (
            f"No record of {self._partition_name()} from offset {position} came within "
            f"{self.options.poll_timeout_ms} ms, though there should be some before {self.wanted.until_offset}."
        )
