"""One task: one range of one partition, fetched as raw batches and decoded while the next fetch is under way."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.asynchronous import AsyncClient
from moldau.client.settings import ClientSettings
from moldau.client.words import EARLIEST, LATEST, Fetched, Isolation
from moldau.model.errors import CorruptMessage, OffsetOutOfRange
from moldau.model.units import KiB, MiB
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from pyspark_moldau.decoding import Place, decode_batches
from pyspark_moldau.options import SourceOptions
from pyspark_moldau.planning import RecordsLost
from pyspark_moldau.splitting import Range
from pyspark_moldau.topic_ids import text_of
from pyspark_moldau.walking import Batch, Walk

log = logging.getLogger("pyspark_moldau")

# An answer that fits the buffer of a busy connection is received without a copy more: above, buffers grow and move.
_FETCH_BYTES: Final = MiB - 4 * KiB
_WAIT_MS: Final = 500
_TURNS_TO_SEND: Final = 3  # of the event loop, after which a request is in the socket


def read_raw(wanted: Range, options: SourceOptions) -> Iterator[Any]:
    """The rows of the range as Arrow batches."""
    loop = asyncio.new_event_loop()
    client = AsyncClient(
        SocketNetwork(),
        SystemClock(),
        system_random(),
        options.kafka.bootstrap_servers,
        settings=_client_settings(options),
    )
    task = Reading(wanted, options, client, loop)
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
class Reading:
    """The loop of one task. Leaders that move and connections that break are the client's business."""

    wanted: Range
    options: SourceOptions
    client: AsyncClient
    loop: asyncio.AbstractEventLoop
    _under_way: asyncio.Task[Fetched] | None = None

    def rows(self) -> Iterator[Any]:
        position = self.wanted.from_offset
        self._check_topic_id()
        patience_until = self._patience_until()
        while position < self.wanted.until_offset:
            try:
                fetched = self._fetched(position)
            except OffsetOutOfRange:
                position = self._behind_the_loss(position)
                continue
            batches, reached = self._walk(fetched, position)
            place = self._place(position)
            if reached > position:
                patience_until = self._patience_until()
            elif self._is_gap(fetched):
                return
            elif time.monotonic() > patience_until:
                raise TimeoutError(self._impatience(position))
            position = reached
            if position < self.wanted.until_offset:
                self._begin_fetch(position)
            yield from decode_batches(batches, place)

    def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            self.loop.run_until_complete(asyncio.gather(self._under_way, return_exceptions=True))
        self.loop.run_until_complete(self.client.close())
        self.loop.close()

    def _place(self, position: int) -> Place:
        # A batch may begin before the offset that was asked for, with records that we have or that are deleted.
        wanted = self.wanted
        return Place(wanted.topic, wanted.partition, position, wanted.until_offset, self.options.includes_headers)

    def _begin_fetch(self, position: int) -> None:
        """Send the request now, so that the broker works and the answer travels while we decode the last one."""
        kafka = self.options.kafka
        fetch = self.client.fetch(
            self.wanted.topic,
            self.wanted.partition,
            position,
            max_bytes=kafka.number("max.partition.fetch.bytes", _FETCH_BYTES),
            min_bytes=kafka.number("fetch.min.bytes", 1),
            max_wait_ms=kafka.number("fetch.max.wait.ms", _WAIT_MS),
            isolation=self._isolation(),
        )
        self._under_way = self.loop.create_task(fetch)
        for _ in range(_TURNS_TO_SEND):
            self.loop.run_until_complete(asyncio.sleep(0))

    def _fetched(self, position: int) -> Fetched:
        if self._under_way is None:
            self._begin_fetch(position)
        assert self._under_way is not None
        task, self._under_way = self._under_way, None
        return self.loop.run_until_complete(task)

    def _walk(self, fetched: Fetched, position: int) -> tuple[list[Batch], int]:
        aborted = fetched.aborted if self.options.kafka.reads_committed else ()
        walk = Walk(fetched.records, position, self.wanted.until_offset, aborted)
        batches = list(walk.batches())
        if walk.next_offset <= position and len(fetched.records):
            raise CorruptMessage(f"the answer to a fetch at offset {position} holds no whole batch from there on")
        return batches, walk.next_offset

    def _is_gap(self, fetched: Fetched) -> bool:
        """Nothing came although the log goes further: compaction has left nothing in the rest of the range."""
        end = fetched.last_stable_offset if self.options.kafka.reads_committed else fetched.high_watermark
        return end >= self.wanted.until_offset

    def _behind_the_loss(self, position: int) -> int:
        """The log does not have this offset any more, or not yet again: go on where it begins, if that is allowed."""
        earliest, latest = self._bounds()
        what = f"offset {position} of {self._named()} is gone: there are offsets {earliest} to {latest}"
        self._lose(what)
        return earliest if position < earliest else self.wanted.until_offset

    def _bounds(self) -> tuple[int, int]:
        earliest, latest = (
            self.loop.run_until_complete(
                self.client.list_offset(self.wanted.topic, self.wanted.partition, time_ms, isolation=self._isolation())
            )
            for time_ms in (EARLIEST, LATEST)
        )
        return earliest.offset, latest.offset

    def _check_topic_id(self) -> None:
        if not self.wanted.topic_id:
            return
        seen = text_of(self.loop.run_until_complete(self.client.topic(self.wanted.topic)).topic_id)
        if seen and seen != self.wanted.topic_id:
            self._lose(f"topic {self.wanted.topic} was deleted and created again: its id is {seen} now")

    def _lose(self, what: str) -> None:
        if self.options.fails_on_data_loss:
            raise RecordsLost(
                f"Some records may have been lost: {what}. Set 'failOnDataLoss' to false to go on all the same."
            )
        log.warning("Some records may have been lost: %s.", what)

    def _isolation(self) -> Isolation:
        return Isolation.READ_COMMITTED if self.options.kafka.reads_committed else Isolation.READ_UNCOMMITTED

    def _patience_until(self) -> float:
        return time.monotonic() + self.options.poll_timeout_ms / 1000

    def _named(self) -> str:
        return f"{self.wanted.topic}-{self.wanted.partition}"

    def _impatience(self, position: int) -> str:
        return (
            f"No record of {self._named()} from offset {position} on came within {self.options.poll_timeout_ms} ms, "
            f"though it should have some before {self.wanted.until_offset}."
        )
