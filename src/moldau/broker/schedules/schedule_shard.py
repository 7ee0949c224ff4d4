"""A shard of the schedule coordinator: a partition of `__schedule_state`, its machine, and the loop that publishes."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.coordinators.shard import CoordinatorShard
from moldau.broker.internal_topics import partition_for
from moldau.broker.partitions.partition import Partition
from moldau.broker.schedules.publisher import Outcome, SchedulePublisher
from moldau.broker.schedules.record_serde import ScheduleCoding
from moldau.client.cron import last_tick, next_tick
from moldau.client.partitioner import partition_for_key
from moldau.machines.schedules import Arming, Publication, Record, Schedule, SchedulesMachine
from moldau.model.errors import InvalidConfig, KafkaError
from moldau.model.units import SECOND_MS

logger = logging.getLogger(__name__)

COMMIT_MS_MAX: Final = 15.0 * SECOND_MS
CHECK_S: Final = 1.0  # the longest sleep: the wall clock may be set meanwhile
RETRY_S: Final = 0.5


class CronTicks:
    """Times of cron expressions; none for an expression that has become invalid, such as by a missing time zone."""

    def next(self, cron: str, timezone: str, after_ms: int) -> int | None:
        return _valid(next_tick, cron, timezone, after_ms)

    def last(self, cron: str, timezone: str, until_ms: int) -> int | None:
        return _valid(last_tick, cron, timezone, until_ms)


def _valid(tick: Callable[[str, str, int], int | None], cron: str, timezone: str, time_ms: int) -> int | None:
    try:
        return tick(cron, timezone, time_ms)
    except InvalidConfig as error:
        logger.error("schedule with cron %s has no ticks: %s", cron, error.message)
        return None


class ScheduleShard(CoordinatorShard[SchedulesMachine, Record]):
    """Publishes from when it is loaded until it is resigned."""

    def __init__(
        self,
        partition: Partition,
        broker: CoordinatorHost,
        schedules: Callable[[int], Mapping[str, Schedule]],
        is_metadata_complete: Callable[[], bool],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        log: PartitionLog[Record] = PartitionLog(partition, ScheduleCoding(), broker.clock, broker.executor)
        super().__init__(
            partition,
            broker,
            log,
            lambda: SchedulesMachine(CronTicks(), lambda: schedules(partition.name.partition)),
            on_failure,
            kind="schedule",
            commit_ms_max=lambda: COMMIT_MS_MAX,
        )
        self._is_metadata_complete = is_metadata_complete
        self._on_failure = on_failure
        self._publisher = SchedulePublisher(broker)
        self._loop: asyncio.Task[None] | None = None
        self._publications: dict[str, asyncio.Task[None]] = {}  # by schedule
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Definitions have changed."""
        self._changed.set()

    # Lifecycle

    async def load(self) -> None:
        await super().load()
        if self._loop is None and self.is_ready:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    def resign(self) -> None:
        self._cancel()
        super().resign()

    async def close(self) -> None:
        tasks = self._cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    def _cancel(self) -> list[asyncio.Task[None]]:
        """The next coordinator continues from what is committed."""
        tasks = [*self._publications.values(), *([] if self._loop is None else [self._loop])]
        for task in tasks:
            task.cancel()
        return tasks

    # The loop

    async def _run(self) -> None:
        try:
            while True:
                await self._step_or_retry()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._on_failure(f"{self.name}: the schedule coordinator failed", error)

    async def _step_or_retry(self) -> None:
        try:
            await self._step()
        except KafkaError as error:  # the ISR is too small, the disk is full, or another broker leads
            logger.info("%s: %s, will retry", self.name, error.message)
            await asyncio.sleep(RETRY_S)

    async def _step(self) -> None:
        self._changed.clear()
        await self._arm()
        if self._is_metadata_complete():
            await self.commit(lambda machine: machine.decide_removed())
        await self.commit(lambda machine: machine.decide_due(self.now))
        for publication in await self.read(lambda machine: machine.unpublished()):
            self._start(publication)
        next_ms = await self.read(lambda machine: machine.next_due_ms())
        await self._sleep_until(next_ms)

    async def _arm(self) -> None:
        """Give new schedules a producer id and a partition; those without a topic follow when it is created."""
        armings: dict[str, Arming] = {}
        for schedule in await self.read(lambda machine: machine.unarmed()):
            topic = self._broker.image.topics.get(schedule.topic)
            if topic is not None:
                key = schedule.name if schedule.key is None else schedule.key
                index = partition_for_key(key.encode(), len(topic.partitions))
                armings[schedule.name] = Arming(await self._broker.producer_ids.next(), index)
        if armings:
            await self.commit(lambda machine: machine.decide_armed(armings, self.now))

    async def _sleep_until(self, wall_ms: int | None) -> None:
        left_s = CHECK_S if wall_ms is None else (wall_ms - self._broker.clock.wall_ms()) / 1000
        try:
            async with asyncio.timeout(min(CHECK_S, max(0.0, left_s))):
                await self._changed.wait()
        except TimeoutError:
            return

    def _start(self, publication: Publication) -> None:
        name = publication.schedule.name
        if name not in self._publications:
            task = asyncio.get_running_loop().create_task(self._publish(publication))
            self._publications[name] = task

    async def _publish(self, publication: Publication) -> None:
        """Publish, record that, and let the loop look for the next tick."""
        try:
            while await self._publisher.publish(publication) is Outcome.OUT_OF_ORDER:
                publication = await self._renew(publication, await self._broker.producer_ids.next())
            await self.commit(lambda machine: machine.decide_published(publication))
        except KafkaError as error:  # the loop starts it again if this broker is still the coordinator
            logger.info("schedule %s: %s", publication.schedule.name, error.message)
            await asyncio.sleep(RETRY_S)
        except Exception as error:
            self._on_failure(f"schedule {publication.schedule.name}: publication failed", error)
        finally:
            del self._publications[publication.schedule.name]
            self._changed.set()

    async def _renew(self, publication: Publication, producer_id: int) -> Publication:
        return await self.commit(lambda machine: machine.decide_renewed(publication, producer_id))


def shard_index(name: str, partitions: int) -> int:
    """The partition of the state topic that coordinates a schedule."""
    return partition_for(name, partitions)
