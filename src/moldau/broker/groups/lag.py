"""Consumer lag: for the metrics page, and for a warning about groups whose lag keeps growing."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.groups.remote_end_offsets import fetch_end_offsets
from moldau.broker.groups.shard import Shard
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.units import SECOND_MS

logger = logging.getLogger(__name__)

CHECKS_PER_WARNING: Final = 5  # checks in the time after which a warning is due
CHECK_MS_MIN: Final = 100.0
DISABLED_CHECK_MS: Final = 60.0 * SECOND_MS  # between checks whether warnings are enabled


class Position(NamedTuple):
    """A committed offset of a group, and the lag there; None while the partition's end is unknown."""

    group_id: str
    topic: str
    partition: int
    offset: int
    lag: int | None

    @property
    def partition_name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class GrowingLag(NamedTuple):
    """A group whose lag has grown for a while."""

    group_id: str
    lag: int
    since_ms: float


async def positions(broker: CoordinatorHost, shards: Iterable[Shard]) -> list[Position]:
    """Return the positions of all groups that this broker coordinates, except those of shards that are loading."""
    found: list[Position] = []
    for shard in shards:
        try:
            committed = await shard.read(lambda machine: list(machine.committed()))
        except KafkaError:
            continue
        found += [Position(*each, _lag(broker, *each[1:])) for each in committed]
        await asyncio.sleep(0)
    return await _with_remote_lags(broker, found)


async def _with_remote_lags(broker: CoordinatorHost, found: list[Position]) -> list[Position]:
    """Fill in the lags of partitions that this broker has no replica of, from their leaders."""
    ends = await fetch_end_offsets(broker, {each.partition_name for each in found if each.lag is None})
    return [
        each._replace(lag=max(0, ends[each.partition_name] - each.offset))
        if each.lag is None and each.partition_name in ends
        else each
        for each in found
    ]


def _lag(broker: CoordinatorHost, topic: str, index: int, offset: int) -> int | None:
    partition = broker.partitions.find(topic, index)
    return None if partition is None else max(0, partition.high_watermark - offset)


@dataclass(slots=True)
class _Trend:
    lag: int
    since_ms: float  # when it last did not grow


class Trends:
    """Tracks the lag of groups over consecutive checks."""

    def __init__(self) -> None:
        self._trends: dict[str, _Trend] = {}

    def check(self, lags: Mapping[str, int], now_ms: float, window_ms: float) -> list[GrowingLag]:
        """Return groups whose lag has grown at each check for `window_ms`, each once per window."""
        growing = []
        trends: dict[str, _Trend] = {}
        for group_id, lag in lags.items():
            before = self._trends.get(group_id)
            trend = trends[group_id] = _Trend(lag, now_ms if before is None or lag <= before.lag else before.since_ms)
            if before is not None and now_ms - trend.since_ms >= window_ms:
                growing.append(GrowingLag(group_id, lag, trend.since_ms))
                trend.since_ms = now_ms
        self._trends = trends
        return growing


class LagWatch:
    """Checks all lags periodically, and logs warnings."""

    def __init__(self, broker: CoordinatorHost, positions: Callable[[], Awaitable[list[Position]]]) -> None:
        self._broker = broker
        self._positions = positions
        self._trends = Trends()
        self._last: dict[tuple[str, TopicPartition], int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            window_ms = self._broker.settings.lag_warning_ms
            pause_ms = max(window_ms / CHECKS_PER_WARNING, CHECK_MS_MIN) if window_ms else DISABLED_CHECK_MS
            await asyncio.sleep(pause_ms / 1000)
            if window_ms:
                await self.check(window_ms)

    async def check(self, window_ms: float) -> None:
        lags: Counter[str] = Counter()
        for (group_id, _), lag in (await self._lags()).items():
            lags[group_id] += lag
        now_ms = self._broker.clock.monotonic_ms()
        for group_id, lag, since_ms in self._trends.check(lags, now_ms, window_ms):
            self._broker.limited_logger.write(
                "lag",
                f"Group {group_id} falls behind: its lag has grown for {(now_ms - since_ms) / 1000:.0f} s, "
                f"to {lag} records",
            )

    async def _lags(self) -> dict[tuple[str, TopicPartition], int]:
        """Return all lags. An unknown one keeps its last value: as zero, the group would seem to catch up."""
        found = {(each.group_id, each.partition_name): each.lag for each in await self._positions()}
        self._last = {key: self._last.get(key, 0) if lag is None else lag for key, lag in found.items()}
        return self._last
