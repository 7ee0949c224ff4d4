"""Partition reassignments: listing, starting, cancelling; and leader elections."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from moldau.client.async_client import AsyncClient
from moldau.client.errors import NO_ACTIVE_CONTROLLER, Checked, HasErrorMessage, check, error_of
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicPartition
from moldau.wire import messages
from moldau.wire.messages import Request

Outcomes = dict[TopicPartition, KafkaError | None]


class Election(IntEnum):
    """The type of an election, with ElectLeaders' numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """An ongoing reassignment: all current replicas, and which are added and removed."""

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
    """Reassigns partitions and elects leaders."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def ongoing(self) -> dict[TopicPartition, Reassignment]:
        """Return every ongoing reassignment."""
        request = messages.ListPartitionReassignmentsRequest(
            timeout_ms=self.client.settings.request_timeout_ms, topics=None
        )
        response = await self._send(request)
        return {
            TopicPartition(topic.name, each.partition_index): Reassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in sorted(response.topics, key=lambda topic: topic.name)
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        }

    async def alter(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> Outcomes:
        """Assign new replicas to partitions; None cancels an ongoing reassignment. Return the results."""
        response = await self._send(_alteration(wanted, self.client.settings.request_timeout_ms))
        return {
            TopicPartition(topic.name, each.partition_index): _error(each)
            for topic in response.responses
            for each in topic.partitions
        }

    async def elect(self, kind: Election, topic_partitions: Iterable[TopicPartition] | None) -> Outcomes:
        """Elect leaders of these partitions, or of all; return the results."""
        request = messages.ElectLeadersRequest
        topics = None
        if topic_partitions is not None:
            topics = [
                request.TopicPartitions(topic=topic, partitions=[each.partition for each in chosen])
                for topic, chosen in by_topic(topic_partitions)
            ]
        timeout_ms = self.client.settings.request_timeout_ms
        response = await self._send(request(election_type=kind, topic_partitions=topics, timeout_ms=timeout_ms))
        return {
            TopicPartition(topic.topic, each.partition_id): _error(each)
            for topic in response.replica_election_results
            for each in topic.partition_result
        }

    async def _send(self, request: Request[Checked]) -> Checked:
        async def attempt() -> Checked:
            response = await self.client.send_to_controller(request)
            check(response.error_code, getattr(response, "error_message", None) or _message_for(response.error_code))
            return response

        return await self.client.retry(attempt, final=NO_ACTIVE_CONTROLLER)


def by_topic(topic_partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(chosen)) for topic, chosen in groupby(sorted(topic_partitions), key=lambda each: each.topic)]


def _alteration(
    wanted: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int
) -> "messages.AlterPartitionReassignmentsRequest":
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


def _message_for(code: int) -> str | None:
    """The response of ElectLeaders has no message."""
    if code in NO_ACTIVE_CONTROLLER:
        return (
            "no active controller responded in time: is a majority of the controllers running? (moldau cluster health)"
        )
    return None


def _error(response: HasErrorMessage) -> KafkaError | None:
    if response.error_code == ErrorCode.NONE:
        return None
    return error_of(response.error_code, response.error_message)
