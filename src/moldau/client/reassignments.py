"""Moving partitions from outside: what is being moved, asking for more, calling it off; and electing leaders."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Any

from moldau.client.async_client import AsyncClient
from moldau.client.errors import NOBODY_CONTROLS, check, error_of
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicPartition
from moldau.wire import messages

Outcomes = dict[TopicPartition, KafkaError | None]


class Election(IntEnum):
    """Whom to elect, by ElectLeaders' numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way: all its replicas now, and which of them come and go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.adding)


class Reassignments:
    """What a client may ask about moves of partitions."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def ongoing(self) -> dict[TopicPartition, Reassignment]:
        """Every partition that is being moved."""
        request = messages.ListPartitionReassignmentsRequest(
            timeout_ms=self.client.settings.request_timeout_ms, topics=None
        )
        answer = await self._ask(request)
        return {
            TopicPartition(topic.name, each.partition_index): Reassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in sorted(answer.topics, key=lambda topic: topic.name)
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        }

    async def alter(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> Outcomes:
        """Give partitions new replicas; None calls off what is under way. What became of each."""
        answer = await self._ask(_alteration(wanted, self.client.settings.request_timeout_ms))
        return {
            TopicPartition(topic.name, each.partition_index): _error(each)
            for topic in answer.responses
            for each in topic.partitions
        }

    async def elect(self, kind: Election, places: Iterable[TopicPartition] | None) -> Outcomes:
        """Elect leaders of these partitions, or of all; what became of each."""
        request = messages.ElectLeadersRequest
        topics = None
        if places is not None:
            topics = [
                request.TopicPartitions(topic=topic, partitions=[each.partition for each in chosen])
                for topic, chosen in by_topic(places)
            ]
        timeout_ms = self.client.settings.request_timeout_ms
        answer = await self._ask(request(election_type=kind, topic_partitions=topics, timeout_ms=timeout_ms))
        return {
            TopicPartition(topic.topic, each.partition_id): _error(each)
            for topic in answer.replica_election_results
            for each in topic.partition_result
        }

    async def _ask(self, request: Any) -> Any:
        async def ask_once() -> Any:
            answer = await self.client.send_to_controller(request)
            check(answer.error_code, getattr(answer, "error_message", None) or _words_for(answer.error_code))
            return answer

        return await self.client.persist(ask_once, final=NOBODY_CONTROLS)


def by_topic(places: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(chosen)) for topic, chosen in groupby(sorted(places), key=lambda each: each.topic)]


def _alteration(wanted: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int) -> Any:
    request = messages.AlterPartitionReassignmentsRequest
    topics = [
        request.ReassignableTopic(
            name=topic,
            partitions=[
                request.ReassignablePartition(partition_index=each.partition, replicas=_listed(wanted[each]))
                for each in chosen
            ],
        )
        for topic, chosen in by_topic(wanted)
    ]
    return request(timeout_ms=timeout_ms, topics=topics)


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _words_for(code: int) -> str | None:
    """ElectLeaders' answer has no room for words."""
    if code in NOBODY_CONTROLS:
        return "no active controller answered in time: does a majority of them run? (moldau cluster health)"
    return None


def _error(answer: Any) -> KafkaError | None:
    if answer.error_code == ErrorCode.NONE:
        return None
    return error_of(answer.error_code, answer.error_message)
