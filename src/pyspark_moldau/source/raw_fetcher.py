"""Reads one offset range in a task: raw batches are decoded while the next fetch is in flight."""

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
from pyspark_moldau.client_security import security_of
from pyspark_moldau.codec.batch_iterator import Batch, BatchIterator
from pyspark_moldau.codec.decoder import DecodeRange, decode_batches
from pyspark_moldau.options.source_options import SourceOptions
from pyspark_moldau.source.offset_ranges import OffsetRange
from pyspark_moldau.source.read_plan import RecordsLost
from pyspark_moldau.source.topic_ids import topic_id_text
from pyspark_moldau.topic_lookup import look_up_topic

log = logging.getLogger("pyspark_moldau")

# A response that fits the connection's receive buffer saves a copy; larger ones make it grow.
_FETCH_BYTES: Final = MiB - 4 * KiB
_WAIT_MS: Final = 500
_TURNS_TO_SEND: Final = 3  # iterations of the event loop until a request is written to the socket
_STALL_S: Final = 1.0  # after a longer pause of the loop, a timeout may be caused by this process
_STALL_FRACTION: Final = 0.1  # or after this fraction of the request timeout
_RETRY_S: Final = 0.05  # before a retry
_EMPTY_RESPONSES: Final = 3  # consecutive, before a gap is assumed
_EMPTY_WAIT_MS: Final = 50  # for the second and later fetches, so that compacted gaps cost little
_REMOTE_WAIT_MS_MAX: Final = 10 * SECOND_MS
_EARLIEST_LOCAL: Final = -4  # in ListOffsets: earlier records are in tiered storage (KIP-405)
_FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable)


def read_raw(wanted: OffsetRange, options: SourceOptions) -> Iterator[Any]:
    """Yield the rows of the range as Arrow batches."""
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
        security=security_of(kafka),
    )


@dataclass(slots=True)
class RangeFetcher:
    """The fetch loop of one task. The client handles leader changes and lost connections."""

    wanted: OffsetRange
    options: SourceOptions
    client: AsyncClient
    loop: asyncio.AbstractEventLoop
    _pending_fetch: asyncio.Task[FetchResult] | None = None
    _loop_stopped_s: float = 0.0  # when the loop was paused
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
        # A batch may start before the requested offset, with records that were already read or are deleted.
        wanted = self.wanted
        return DecodeRange(wanted.topic, wanted.partition, position, wanted.until_offset, self.options.includes_headers)

    def _begin_fetch(self, position: int) -> None:
        """Send the next fetch now, so that it overlaps with decoding the last response."""
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
        # A fetch from tiered storage may take up to the maximum wait time.
        return max(given_ms, min(given_ms * max(self._empty_responses, 1), _REMOTE_WAIT_MS_MAX))

    def _next_response(self, position: int) -> FetchResult:
        stall_s = min(_STALL_S, self.options.poll_timeout_ms / 1000 * _STALL_FRACTION)
        was_stalled = self._pending_fetch is not None and time.monotonic() - self._loop_stopped_s > stall_s
        try:
            return self._await_response(position)
        except _FAILURES:
            if not was_stalled:
                raise
        # The loop was paused while Spark consumed rows: the timeout may have expired although the response has arrived.
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
            raise CorruptMessage(f"the response to a fetch at offset {position} contains no complete batch")
        return batches, iterator.next_offset

    def _is_gap(self, fetched: FetchResult, position: int) -> bool:
        """Whether the rest of the range is a compaction gap: fetches return nothing although the log continues.

        One empty response is not enough: Kafka also sends it when records from tiered storage do not arrive in time. So
        several are required, and this part of the log must be local.
        """
        if self._end_in(fetched) < self.wanted.until_offset or fetched.preferred_read_replica != NO_NODE:
            self._empty_responses = 0
            return False
        self._empty_responses += 1
        if self._empty_responses < _EMPTY_RESPONSES or not self._is_local(position):
            return False
        log.warning(
            "No records in %s from offset %d to %d after %d fetches; assuming a gap left by compaction.",
            *(self._partition_name(), position, self.wanted.until_offset - 1, self._empty_responses),
        )
        return True

    def _is_truncated(self, fetched: FetchResult, position: int) -> bool:
        """Whether the log ends before the range and has not grown until the deadline, so that records are lost.

        A new leader learns the high watermark with some delay. With `failOnDataLoss`, the result is a timeout error.
        """
        end = self._end_in(fetched)
        is_over = self._is_past_deadline() and fetched.preferred_read_replica == NO_NODE and end <= position
        if not is_over or self.options.fails_on_data_loss:
            return False
        self._report_data_loss(
            f"{self._partition_name()} was to be read up to offset {self.wanted.until_offset} but now ends at {end}"
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
            return True  # the cluster does not support tiered storage

    def _skip_lost_records(self, position: int) -> int:
        """Handle OFFSET_OUT_OF_RANGE: continue at the earliest offset if data loss is tolerated."""
        earliest, latest = self._offset_at(EARLIEST), self._offset_at(LATEST)
        if earliest <= position <= latest:  # the responding replica was behind: retry
            self._pause(position)
            return position
        what = f"offset {position} of {self._partition_name()} is not available: the log has {earliest} to {latest}"
        self._report_data_loss(what)
        self._extend_deadline()
        self._empty_responses = 0
        return earliest if position < earliest else self.wanted.until_offset

    def _offset_at(self, time_ms: int) -> int:
        where = self.wanted
        requested = self.client.list_offset(where.topic, where.partition, time_ms, isolation=self._isolation())
        return self.loop.run_until_complete(requested).offset

    def _check_topic_id(self, view: TopicView | None) -> None:
        """Detect a recreated topic after each fetch, because the client follows the topic's name."""
        if not self.wanted.topic_id or view is None:
            return
        seen = topic_id_text(view.topic_id)
        if seen and seen != self.wanted.topic_id:
            self._report_data_loss(f"topic {self.wanted.topic} was deleted and recreated: its id is now {seen}")
            self.wanted = self.wanted._replace(topic_id=seen)  # report it once

    def _report_data_loss(self, what: str) -> None:
        if self.options.fails_on_data_loss:
            raise RecordsLost(
                f"Some records may have been lost: {what}. Set 'failOnDataLoss' to false to continue anyway."
            )
        log.warning("Some records may have been lost: %s.", what)

    def _isolation(self) -> Isolation:
        return Isolation.READ_COMMITTED if self.options.kafka.reads_committed else Isolation.READ_UNCOMMITTED

    def _extend_deadline(self) -> None:
        self._deadline_s = time.monotonic() + self.options.poll_timeout_ms / 1000

    def _is_past_deadline(self) -> bool:
        return time.monotonic() > self._deadline_s

    def _pause(self, position: int) -> None:
        """Pause before a retry, unless the deadline has passed."""
        if self._is_past_deadline():
            raise TimeoutError(self._timeout_message(position))
        self.loop.run_until_complete(asyncio.sleep(_RETRY_S))

    def _partition_name(self) -> str:
        return f"{self.wanted.topic}-{self.wanted.partition}"

    def _timeout_message(self, position: int) -> str:
        return (
            f"No record received from {self._partition_name()} at offset {position} within "
            f"{self.options.poll_timeout_ms} ms; expected records up to offset {self.wanted.until_offset}."
        )
