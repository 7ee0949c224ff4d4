"""Execution of reassignment plans: start, progress, cancellation, cleanup."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES, assignment_of
from moldau.client.metadata import TopicView
from moldau.client.reassignment_plans import Assignment, InvalidPlan
from moldau.client.reassignments import Outcomes, Reassignment, Reassignments
from moldau.client.throttles import Throttles
from moldau.model.errors import UnknownTopicOrPartition
from moldau.model.ids import TopicPartition
from moldau.wire import messages

ATTEMPTS_MAX: Final = 8
RETRY_S: Final = 0.25


class Stage(StrEnum):
    """The progress of a partition."""

    DONE = "done"
    MOVING = "moving"
    ELSEWHERE = "elsewhere"  # not moving, and not on its planned replicas
    GONE = "gone"  # the partition does not exist: its topic was deleted


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The progress of one partition of a plan."""

    partition: TopicPartition
    stage: Stage
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    copied: float | None = None  # the fraction of its bytes that the slowest new replica has

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.stage in (Stage.DONE, Stage.GONE)


class ReassignmentInProgress(Exception):
    """Another reassignment is in progress."""


def discard_assignment(before: Assignment) -> None:
    """The default of `keep`."""


class PlanExecutor:
    """Executes reassignment plans."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.reassignments = Reassignments(client)
        self.throttles = Throttles(client)

    async def racks(self) -> dict[int, str | None]:
        """Return the unfenced brokers with their racks."""
        view = await self.client.describe_cluster()
        return {each.node_id: each.rack for each in view.brokers if not each.is_fenced}

    async def assignment(self, topics: Iterable[str] | None = None) -> Assignment:
        """Return the assignment of these topics, or all, after ongoing reassignments."""
        views = await self._views(topics)
        moving = await self.reassignments.ongoing()
        return {
            topic_partition: moving[topic_partition].target if topic_partition in moving else replicas
            for topic_partition, replicas in assignment_of(views).items()
        }

    async def begin(
        self,
        plan: Assignment,
        *,
        throttle_bytes: int | None = None,
        is_additional: bool = False,
        keep: Callable[[Assignment], None] = discard_assignment,
    ) -> tuple[Assignment, Outcomes]:
        """Start the reassignment; return the previous assignment and the result of each partition.

        `keep` is called with the previous assignment before the first change, so that a failure can be rolled back.
        """
        moving = await self.reassignments.ongoing()
        before = {
            topic_partition: moving[topic_partition].origin if topic_partition in moving else replicas
            for topic_partition, replicas in (await self._current(plan)).items()
        }
        if moving and not is_additional:
            raise ReassignmentInProgress(f"{len(moving)} partitions are already being reassigned")
        keep(before)
        if throttle_bytes is not None:
            serving = await self.racks()
            await self.throttles.apply(before, plan, throttle_bytes, serving=serving, keeps_others=bool(moving))
        wanted = {
            topic_partition: target
            for topic_partition, target in plan.items()
            if _is_change(before[topic_partition], target, moving.get(topic_partition))
        }
        return before, await self.reassignments.alter(wanted) if wanted else {}

    async def progress(self, plan: Assignment) -> list[PartitionMove]:
        """Return the progress of each partition, in order.

        The metadata of a broker may lag behind the controller's list of reassignments: retry for a while if they are
        inconsistent.
        """
        for _ in range(ATTEMPTS_MAX - 1):
            found = await self._snapshot(plan)
            if all(each.stage in (Stage.DONE, Stage.MOVING) for each in found):
                return found
            await asyncio.sleep(RETRY_S)
        return await self._snapshot(plan)

    async def _snapshot(self, plan: Assignment) -> list[PartitionMove]:
        moving = await self.reassignments.ongoing()
        views = await self.client.describe_topics(sorted({topic_partition.topic for topic_partition in plan}))
        held = assignment_of(_checked(each for each in views if not isinstance(each.error, UnknownTopicOrPartition)))
        copied = await self._copied(plan, moving)
        return [
            PartitionMove(
                topic_partition,
                _stage(held.get(topic_partition), target, moving.get(topic_partition)),
                held.get(topic_partition, ()),
                target,
                copied.get(topic_partition),
            )
            for topic_partition, target in sorted(plan.items())
        ]

    async def cancel(self, plan: Assignment) -> Outcomes:
        """Cancel ongoing reassignments of these partitions, which return to their original replicas."""
        moving = await self.reassignments.ongoing()
        wanted = dict.fromkeys(topic_partition for topic_partition in plan if topic_partition in moving)
        return await self.reassignments.alter(wanted) if wanted else {}

    async def clear_up(self, plan: Assignment) -> list[str]:
        """Remove the throttles of these topics, and of all brokers if no other reassignment is in progress."""
        brokers = [] if await self.reassignments.ongoing() else sorted(await self.racks())
        return await self.throttles.remove(sorted({topic_partition.topic for topic_partition in plan}), brokers)

    async def _views(self, topics: Iterable[str] | None) -> list[TopicView]:
        return _checked(await self.client.describe_topics(None if topics is None else sorted(set(topics))))

    async def _current(self, plan: Assignment) -> Assignment:
        """Return the current assignment of the plan's partitions; reject unknown partitions and brokers."""
        held = assignment_of(await self._views({topic_partition.topic for topic_partition in plan}))
        missing = [str(topic_partition) for topic_partition in sorted(plan) if topic_partition not in held]
        if missing:
            raise InvalidPlan(f"unknown partitions: {', '.join(missing)}")
        brokers = await self.racks()
        absent = sorted({each for target in plan.values() for each in target if each not in brokers})
        if absent:
            named, known = (", ".join(map(str, each)) for each in (absent, sorted(brokers)))
            raise InvalidPlan(f"the plan contains unavailable brokers: {named}; available: {known}")
        return {topic_partition: held[topic_partition] for topic_partition in plan}

    async def _copied(
        self, plan: Assignment, moving: Mapping[TopicPartition, Reassignment]
    ) -> dict[TopicPartition, float]:
        """Return the copied fraction of the slowest new replica, by the log sizes that brokers report."""
        topic_partitions = [
            topic_partition
            for topic_partition in sorted(plan)
            if topic_partition in moving and moving[topic_partition].adding
        ]
        brokers = sorted(
            {broker for topic_partition in topic_partitions for broker in moving[topic_partition].replicas}
        )
        sizes = {broker: await self._sizes(broker) for broker in brokers}
        copied: dict[TopicPartition, float] = {}
        for topic_partition in topic_partitions:
            whole = max(sizes[broker].get(topic_partition, 0) for broker in moving[topic_partition].replicas)
            least = min(sizes[broker].get(topic_partition, 0) for broker in moving[topic_partition].adding)
            copied[topic_partition] = least / whole if whole else 1.0
        return copied

    async def _sizes(self, broker: int) -> dict[TopicPartition, int]:
        try:
            response = await self.client.send(messages.DescribeLogDirsRequest(topics=None), node=broker)
        except REQUEST_FAILURES:
            return {}
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for log_dir in response.results
            for topic in log_dir.topics
            for each in topic.partitions
        }


def _checked(views: Iterable[TopicView]) -> list[TopicView]:
    checked = []
    for view in views:
        if view.error is not None:
            raise view.error
        checked.append(view)
    return checked


def _is_change(held: tuple[int, ...], target: tuple[int, ...], moving: Reassignment | None) -> bool:
    return (moving.target if moving else held) != target


def _stage(held: tuple[int, ...] | None, target: tuple[int, ...], moving: Reassignment | None) -> Stage:
    if moving is not None:
        return Stage.MOVING
    if held is None:
        return Stage.GONE
    return Stage.DONE if held == target else Stage.ELSEWHERE
