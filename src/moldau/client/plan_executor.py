"""Carrying out a plan: begin it, see how far it is, call it off, and clear up behind it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import SILENT, assignment_of
from moldau.client.metadata import TopicView
from moldau.client.reassignment_plans import Assignment, BrokenPlan
from moldau.client.reassignments import Outcomes, Reassignment, Reassignments
from moldau.client.throttles import Throttles
from moldau.model.errors import UnknownTopicOrPartition
from moldau.model.ids import TopicPartition
from moldau.wire import messages

LOOKS_MAX: Final = 8
LOOK_AGAIN_S: Final = 0.25


class Stage(StrEnum):
    """How far a partition is with its plan."""

    DONE = "done"
    MOVING = "moving"
    ELSEWHERE = "elsewhere"  # nothing moves it, and it is not where the plan wants it
    GONE = "gone"  # the cluster has no such partition: its topic was deleted


@dataclass(frozen=True, slots=True)
class Move:
    """One partition of a plan."""

    partition: TopicPartition
    stage: Stage
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    copied: float | None = None  # the share of its bytes that the slowest newcomer has

    @property
    def is_done(self) -> bool:
        """Nothing is left to do for it."""
        return self.stage in (Stage.DONE, Stage.GONE)


class MovesRunning(Exception):
    """Partitions are being moved already."""


def unheard(before: Assignment) -> None:
    """Nobody wants to go back."""


class Moves:
    """Plans on a cluster."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.reassignments = Reassignments(client)
        self.throttles = Throttles(client)

    async def racks(self) -> dict[int, str | None]:
        """The brokers that serve, with their racks: those who may be given something."""
        view = await self.client.describe_cluster()
        return {each.node_id: each.rack for each in view.brokers if not each.is_fenced}

    async def assignment(self, topics: Iterable[str] | None = None) -> Assignment:
        """Who holds what, or will when what is under way is done; of these topics, or of all."""
        views = await self._views(topics)
        moving = await self.reassignments.ongoing()
        return {
            place: moving[place].target if place in moving else replicas
            for place, replicas in assignment_of(views).items()
        }

    async def begin(
        self,
        plan: Assignment,
        *,
        throttle_bytes: int | None = None,
        is_additional: bool = False,
        keep: Callable[[Assignment], None] = unheard,
    ) -> tuple[Assignment, Outcomes]:
        """Ask for what the plan wants; who held it before, and what became of each partition.

        `keep` hears who held it ahead of the first change: the way back is wanted most if we do not get to the end.
        """
        moving = await self.reassignments.ongoing()
        before = {
            place: moving[place].origin if place in moving else replicas
            for place, replicas in (await self._known(plan)).items()
        }
        if moving and not is_additional:
            raise MovesRunning(f"{len(moving)} partitions are being moved already")
        keep(before)
        if throttle_bytes is not None:
            serving = await self.racks()
            await self.throttles.put_on(before, plan, throttle_bytes, serving=serving, keeps_others=bool(moving))
        wanted = {place: target for place, target in plan.items() if _is_news(before[place], target, moving.get(place))}
        return before, await self.reassignments.alter(wanted) if wanted else {}

    async def progress(self, plan: Assignment) -> list[Move]:
        """How far each partition is, in order.

        The broker that tells who holds what may be behind the controller that tells what moves: where the two do not
        fit, both are asked again for a while.
        """
        for _ in range(LOOKS_MAX - 1):
            found = await self._look(plan)
            if all(each.stage in (Stage.DONE, Stage.MOVING) for each in found):
                return found
            await asyncio.sleep(LOOK_AGAIN_S)
        return await self._look(plan)

    async def _look(self, plan: Assignment) -> list[Move]:
        moving = await self.reassignments.ongoing()
        views = await self.client.describe_topics(sorted({place.topic for place in plan}))
        held = assignment_of(_checked(each for each in views if not isinstance(each.error, UnknownTopicOrPartition)))
        copied = await self._copied(plan, moving)
        return [
            Move(
                place,
                _stage(held.get(place), target, moving.get(place)),
                held.get(place, ()),
                target,
                copied.get(place),
            )
            for place, target in sorted(plan.items())
        ]

    async def cancel(self, plan: Assignment) -> Outcomes:
        """Call off whatever moves these partitions; they go back to where they were."""
        moving = await self.reassignments.ongoing()
        wanted = dict.fromkeys(place for place in plan if place in moving)
        return await self.reassignments.alter(wanted) if wanted else {}

    async def clear_up(self, plan: Assignment) -> list[str]:
        """Take off the limits of these topics, and of all brokers if nothing else is being moved."""
        brokers = [] if await self.reassignments.ongoing() else sorted(await self.racks())
        return await self.throttles.take_off(sorted({place.topic for place in plan}), brokers)

    async def _views(self, topics: Iterable[str] | None) -> list[TopicView]:
        return _checked(await self.client.describe_topics(None if topics is None else sorted(set(topics))))

    async def _known(self, plan: Assignment) -> Assignment:
        """Who holds the plan's partitions now; a plan that names what is not there is refused."""
        held = assignment_of(await self._views({place.topic for place in plan}))
        missing = [str(place) for place in sorted(plan) if place not in held]
        if missing:
            raise BrokenPlan(f"the cluster has no {', '.join(missing)}")
        brokers = await self.racks()
        absent = sorted({each for target in plan.values() for each in target if each not in brokers})
        if absent:
            named, known = (", ".join(map(str, each)) for each in (absent, sorted(brokers)))
            raise BrokenPlan(f"the plan names brokers that do not serve: {named}; those that do: {known}")
        return {place: held[place] for place in plan}

    async def _copied(
        self, plan: Assignment, moving: Mapping[TopicPartition, Reassignment]
    ) -> dict[TopicPartition, float]:
        """The share that the slowest newcomer has, by the sizes of logs that brokers tell."""
        places = [place for place in sorted(plan) if place in moving and moving[place].adding]
        brokers = sorted({broker for place in places for broker in moving[place].replicas})
        sizes = {broker: await self._sizes(broker) for broker in brokers}
        copied: dict[TopicPartition, float] = {}
        for place in places:
            whole = max(sizes[broker].get(place, 0) for broker in moving[place].replicas)
            least = min(sizes[broker].get(place, 0) for broker in moving[place].adding)
            copied[place] = least / whole if whole else 1.0
        return copied

    async def _sizes(self, broker: int) -> dict[TopicPartition, int]:
        try:
            answer = await self.client.send(messages.DescribeLogDirsRequest(topics=None), node=broker)
        except SILENT:
            return {}
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for folder in answer.results
            for topic in folder.topics
            for each in topic.partitions
        }


def _checked(views: Iterable[TopicView]) -> list[TopicView]:
    checked = []
    for view in views:
        if view.error is not None:
            raise view.error
        checked.append(view)
    return checked


def _is_news(held: tuple[int, ...], target: tuple[int, ...], moving: Reassignment | None) -> bool:
    return (moving.target if moving else held) != target


def _stage(held: tuple[int, ...] | None, target: tuple[int, ...], moving: Reassignment | None) -> Stage:
    if moving is not None:
        return Stage.MOVING
    if held is None:
        return Stage.GONE
    return Stage.DONE if held == target else Stage.ELSEWHERE
