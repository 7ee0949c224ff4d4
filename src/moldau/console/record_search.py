"""Pages of records: newest first or oldest first, from any position, with filters.

A search reads windows of offsets, forwards or backwards, in all chosen partitions at once, until a page is full or its
budget of time and bytes is spent. The result has the positions where the next page begins and the number of records
that are left, so that a page that found nothing yet can show its progress and go on.
"""

import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.types import Isolation
from moldau.console.record_views import FoundRecord
from moldau.console.record_windows import Window, read_windows
from moldau.model.ids import TopicPartition
from moldau.model.ports import Clock
from moldau.model.units import KiB, MiB

TIME_MS_MAX: Final = 800
BYTES_MAX: Final = 16 * MiB
WINDOW_RECORDS_MIN: Final = 2
WINDOW_RECORDS_MAX: Final = 20_000
FILTERED_WINDOW_RECORDS: Final = 5_000
PREVIEW_FETCH_BYTES: Final = 256 * KiB
FILTERED_FETCH_BYTES: Final = MiB

Matches = Callable[[FoundRecord], bool]


@dataclass(frozen=True, slots=True)
class RecordPage:
    """The records of a page, and where the next page begins: no positions if nothing is left."""

    records: list[FoundRecord]
    positions: Mapping[TopicPartition, int]
    scanned: int
    read_bytes: int
    left: int
    elapsed_ms: float


@dataclass(slots=True)
class RecordSearch:
    """One page of a search. `positions` are the next offsets to read; when reading backwards, one above them."""

    client: AsyncClient
    clock: Clock
    extents: Mapping[TopicPartition, tuple[int, int]]
    positions: dict[TopicPartition, int]
    is_backward: bool
    limit: int
    isolation: Isolation
    matches: Matches | None = None
    prepare: Callable[[Sequence[FoundRecord]], Awaitable[None]] | None = None  # before `matches`
    _found: dict[TopicPartition, list[FoundRecord]] = field(default_factory=dict)
    _scanned: int = 0
    _read_bytes: int = 0

    async def run(self) -> RecordPage:
        started_ms = self.clock.monotonic_ms()
        self.positions = {place: self._clamped(place, at) for place, at in self.positions.items()}
        size = self._first_size()
        while (open_places := self._open_places()) and sum(map(len, self._found.values())) < self.limit:
            await self._read_round(open_places, size)
            elapsed_ms = self.clock.monotonic_ms() - started_ms
            if elapsed_ms > TIME_MS_MAX or self._read_bytes > BYTES_MAX:
                break
            size = min(size * 2, WINDOW_RECORDS_MAX)
        records = self._merge()
        left = sum(self._left_in(place) for place in self.positions)
        positions = self.positions if left else {}
        return RecordPage(
            records, positions, self._scanned, self._read_bytes, left, self.clock.monotonic_ms() - started_ms
        )

    def next_page(self, page: RecordPage) -> "RecordSearch":
        """Return the search of the page after this one."""
        return RecordSearch(
            self.client,
            self.clock,
            self.extents,
            dict(page.positions),
            self.is_backward,
            self.limit,
            self.isolation,
            self.matches,
            self.prepare,
        )

    def _first_size(self) -> int:
        if self.matches is not None:
            return FILTERED_WINDOW_RECORDS
        return max(-(-self.limit // max(len(self.positions), 1)), WINDOW_RECORDS_MIN)

    def _clamped(self, place: TopicPartition, position: int) -> int:
        start, end = self.extents[place]
        return min(max(position, start), end)

    def _left_in(self, place: TopicPartition) -> int:
        start, end = self.extents[place]
        position = self.positions[place]
        return position - start if self.is_backward else end - position

    def _open_places(self) -> list[TopicPartition]:
        return [place for place in self.positions if self._left_in(place) > 0]

    async def _read_round(self, places: list[TopicPartition], size: int) -> None:
        windows = [self._window(place, size) for place in places]
        while windows:
            await read_windows(
                self.client,
                windows,
                self.isolation,
                bytes_max=BYTES_MAX,
                partition_bytes_max=PREVIEW_FETCH_BYTES if self.matches is None else FILTERED_FETCH_BYTES,
            )
            await self._prepare(windows)
            # A window read backwards must be read up to its end, or records would be skipped.
            windows = [smaller for window in windows if (smaller := self._accept(window)) is not None]

    async def _prepare(self, windows: Sequence[Window]) -> None:
        if self.matches is not None and self.prepare is not None:
            for window in windows:
                await self.prepare(window.records)

    def _window(self, place: TopicPartition, size: int) -> Window:
        start, end = self.extents[place]
        position = self.positions[place]
        if self.is_backward:
            return Window(place, max(start, position - size), position)
        return Window(place, position, min(position + size, end))

    def _accept(self, window: Window) -> Window | None:
        """Take the records of a window, or return a smaller one to read instead."""
        self._scanned += window.scanned
        self._read_bytes += window.read_bytes
        size = window.high - window.low
        if self.is_backward and not window.is_read and size > 1 and window.read_bytes > 0:
            return Window(window.place, window.high - max(size // 8, 1), window.high)
        matching = window.records if self.matches is None else [each for each in window.records if self.matches(each)]
        if self.is_backward:
            self.positions[window.place] = window.low
            matching = matching[::-1]
        else:
            # A partition that makes no progress is passed by.
            self.positions[window.place] = window.next_offset if window.read_bytes else window.high
        self._found.setdefault(window.place, []).extend(matching)
        return None

    def _merge(self) -> list[FoundRecord]:
        """Merge the partitions by time, each in order of offsets; the next page has the records beyond the limit."""
        sign = -1 if self.is_backward else 1
        merged = list(heapq.merge(*self._found.values(), key=lambda found: sign * found.record.timestamp))
        for found in reversed(merged[self.limit :]):
            self.positions[found.place] = found.record.offset + (1 if self.is_backward else 0)
        return merged[: self.limit]
