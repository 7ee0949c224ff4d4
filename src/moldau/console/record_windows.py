"""Reads ranges of offsets from several partitions at once, within a budget of bytes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import RETRIABLE
from moldau.client.types import FetchResult, Isolation
from moldau.client.visibility import visible_batches
from moldau.console.record_views import FoundRecord
from moldau.model.errors import ErrorCode
from moldau.model.ids import NodeId, TopicPartition
from moldau.model.units import KiB, MiB
from moldau.records.record import iterate_records

FETCH_BYTES_MAX: Final = 8 * MiB
FETCH_WAIT_MS: Final = 100
STALLS_MAX: Final = 3  # fetches without progress, of a partition whose leader moves or whose log was cut
PARTITION_BYTES_MIN: Final = 256 * KiB


@dataclass(slots=True)
class Window:
    """A range of offsets of one partition, and what was read of it."""

    place: TopicPartition
    low: int
    high: int
    records: list[FoundRecord] = field(default_factory=list)
    next_offset: int = -1  # where reading stopped: `high` if everything was read
    scanned: int = 0  # records that a consumer would see
    read_bytes: int = 0
    stalls: int = 0

    def __post_init__(self) -> None:
        self.next_offset = self.low

    @property
    def is_read(self) -> bool:
        return self.next_offset >= self.high


async def read_windows(
    client: AsyncClient, windows: list[Window], isolation: Isolation, *, bytes_max: int, partition_bytes_max: int
) -> None:
    """Read all windows; one that exceeds its share of the budget stops early."""
    share_bytes = max(bytes_max // max(len(windows), 1), PARTITION_BYTES_MIN)
    while unread := [
        each for each in windows if not each.is_read and each.stalls < STALLS_MAX and each.read_bytes < share_bytes
    ]:
        await read_once(client, unread, isolation, partition_bytes_max=partition_bytes_max)


async def read_once(
    client: AsyncClient,
    windows: Sequence[Window],
    isolation: Isolation,
    *,
    partition_bytes_max: int,
    wait_ms: int = FETCH_WAIT_MS,
) -> None:
    """Fetch once from each leader, which waits up to `wait_ms` for records."""
    by_leader: dict[NodeId, dict[TopicPartition, Window]] = {}
    for window in windows:
        view = await client.topic(window.place.topic)
        leader = client.metadata.leader_in(view, window.place.partition).leader
        by_leader.setdefault(leader, {})[window.place] = window
    await asyncio.gather(
        *(
            _fetch(client, leader, chosen, isolation, partition_bytes_max, wait_ms)
            for leader, chosen in by_leader.items()
        )
    )


async def _fetch(
    client: AsyncClient,
    leader: NodeId,
    windows: Mapping[TopicPartition, Window],
    isolation: Isolation,
    partition_bytes_max: int,
    wait_ms: int,
) -> None:
    fetched = await client.fetch_from(
        leader,
        {place: window.next_offset for place, window in windows.items()},
        max_bytes=FETCH_BYTES_MAX,
        partition_max_bytes=partition_bytes_max,
        max_wait_ms=wait_ms,
        isolation=isolation,
    )
    for place, window in windows.items():
        before = window.next_offset
        if place in fetched:
            _take(client, window, fetched[place], isolation)
            await asyncio.sleep(0)  # other users' requests, between two partitions
        if window.next_offset == before:
            window.stalls += 1


def _take(client: AsyncClient, window: Window, fetched: FetchResult, isolation: Isolation) -> None:
    if fetched.error is not None:
        if fetched.error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            window.next_offset = window.high  # deleted meanwhile
        elif fetched.error.code in RETRIABLE and window.stalls + 1 < STALLS_MAX:
            client.invalidate_topic(window.place.topic, is_stale=True)
        else:
            raise fetched.error
        return
    window.read_bytes += len(fetched.records)
    for header, batch, is_visible in visible_batches(fetched.records, fetched.aborted, isolation):
        if header.next_offset <= window.next_offset:
            continue
        if header.base_offset >= window.high:
            window.next_offset = window.high
            return
        if is_visible:
            records = [each for each in iterate_records(batch) if window.low <= each.offset < window.high]
            window.records.extend(FoundRecord(window.place, each) for each in records)
            window.scanned += len(records)
        window.next_offset = min(header.next_offset, window.high)
