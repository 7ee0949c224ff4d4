"""How far groups are behind: for the metrics page, and for a warning when one falls further and further behind."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.groups.remote_end_offsets import ends_elsewhere
from moldau.broker.groups.shard import Shard
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.units import SECOND_MS

logger = logging.getLogger(__name__)

LOOKS_PER_WARNING: Final = 5  # a lag that has grown so many times in a row grows
LOOK_MS_MIN: Final = 100.0
OFF_MS: Final = 60.0 * SECOND_MS  # how often it is seen whether warnings are wanted again


class Position(NamedTuple):
    """What a group has committed for a partition, and how much lies behind it; None if nobody can tell just now."""

    group_id: str
    topic: str
    partition: int
    offset: int
    lag: int | None

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Falling(NamedTuple):
    """A group that has fallen behind for a while."""

    group_id: str
    lag: int
    since_ms: float


async def positions(broker: CoordinatorHost, shards: Iterable[Shard]) -> list[Position]:
    """Of all groups that are looked after here; those of shards that are loading are left out."""
    found: list[Position] = []
    for shard in shards:
        try:
            committed = await shard.read(lambda machine: list(machine.committed()))
        except KafkaError:
            continue
        found += [Position(*each, _lag(broker, *each[1:])) for each in committed]
        await asyncio.sleep(0)
    return await _completed(broker, found)


async def _completed(broker: CoordinatorHost, found: list[Position]) -> list[Position]:
    """With the lags of partitions that are not here: their leaders tell where they end."""
    ends = await ends_elsewhere(broker, {each.place for each in found if each.lag is None})
    return [
        each._replace(lag=max(0, ends[each.place] - each.offset)) if each.lag is None and each.place in ends else each
        for each in found
    ]


def _lag(broker: CoordinatorHost, topic: str, index: int, offset: int) -> int | None:
    partition = broker.partitions.find(topic, index)
    return None if partition is None else max(0, partition.high_watermark - offset)


@dataclass(slots=True)
class _Trend:
    lag: int
    since_ms: float  # the last time it had not grown


class Trends:
    """Which groups' lag grows, look after look."""

    def __init__(self) -> None:
        self._trends: dict[str, _Trend] = {}

    def look(self, lags: Mapping[str, int], now_ms: float, patience_ms: float) -> list[Falling]:
        """Those whose lag has grown at every look for so long; each is named once in that time."""
        falling = []
        trends: dict[str, _Trend] = {}
        for group_id, lag in lags.items():
            before = self._trends.get(group_id)
            trend = trends[group_id] = _Trend(lag, now_ms if before is None or lag <= before.lag else before.since_ms)
            if before is not None and now_ms - trend.since_ms >= patience_ms:
                falling.append(Falling(group_id, lag, trend.since_ms))
                trend.since_ms = now_ms
        self._trends = trends
        return falling


class LagWatch:
    """Looks at all lags from time to time, and writes a warning into the log."""

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
            patience_ms = self._broker.settings.lag_warning_ms
            pause_ms = max(patience_ms / LOOKS_PER_WARNING, LOOK_MS_MIN) if patience_ms else OFF_MS
            await asyncio.sleep(pause_ms / 1000)
            if patience_ms:
                await self.look(patience_ms)

    async def look(self, patience_ms: float) -> None:
        lags: Counter[str] = Counter()
        for (group_id, _), lag in (await self._lags()).items():
            lags[group_id] += lag
        now_ms = self._broker.clock.monotonic_ms()
        for group_id, lag, since_ms in self._trends.look(lags, now_ms, patience_ms):
            self._broker.limited_logger.write(
                "lag",
                f"Group {group_id} falls behind: its lag has grown for {(now_ms - since_ms) / 1000:.0f} s, "
                f"to {lag} records",
            )

    async def _lags(self) -> dict[tuple[str, TopicPartition], int]:
        """What nobody can tell counts as it last was: as nothing, it would look like a group that catches up."""
        found = {(each.group_id, each.place): each.lag for each in await self._positions()}
        self._last = {key: self._last.get(key, 0) if lag is None else lag for key, lag in found.items()}
        return self._last
