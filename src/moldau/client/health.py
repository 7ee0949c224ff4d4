"""Whether a cluster is well: what its brokers, partitions and quorum say, and each thing that is wrong, in words."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.client import requests
from moldau.client.async_client import AsyncClient
from moldau.client.brokers import SILENT
from moldau.client.errors import check
from moldau.client.metadata import PartitionView, TopicView
from moldau.client.quorum import Quorum, QuorumReplica, QuorumView
from moldau.client.reassignments import Reassignment, Reassignments
from moldau.client.types import ClusterView, ResourceKind
from moldau.model.errors import ClusterAuthorizationFailed, ErrorCode, RequestTimedOut, UnsupportedVersion
from moldau.model.ids import Address, TopicPartition
from moldau.model.units import SECOND_MS
from moldau.wire import messages

MIN_ISR: Final = "min.insync.replicas"
TOPICS_PER_REQUEST: Final = 500
CONTROLLER_MS_MAX: Final = 5 * SECOND_MS
BROKER_MS_MAX: Final = 5 * SECOND_MS
VOTER_SILENT_MS: Final = 10_000  # voters fetch at least twice a second
INTERNAL_COPIES: Final = 3  # as many as Kafka, too, makes of its own topics where there are brokers for them


@dataclass(frozen=True, slots=True)
class SickPartition:
    """A partition that lacks something."""

    partition: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int
    is_under_replicated: bool

    @property
    def is_offline(self) -> bool:
        return self.leader < 0

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.min_isr


@dataclass(frozen=True, slots=True)
class Health:
    """The cluster, and what it lacks."""

    cluster: ClusterView
    quorum: QuorumView | None  # None where the cluster has none, or does not tell, or nobody answers
    is_uncontrolled: bool
    unreachable: tuple[int, ...]  # brokers that should serve, and that we do not reach
    topics: int
    partitions: int
    sick: tuple[SickPartition, ...]
    reassigning: int
    thin: Mapping[str, int]  # topics of the cluster's own that have fewer copies than brokers could hold: how many

    @property
    def offline(self) -> list[SickPartition]:
        return [each for each in self.sick if each.is_offline]

    @property
    def under_min_isr(self) -> list[SickPartition]:
        return [each for each in self.sick if each.is_under_min_isr]

    @property
    def under_replicated(self) -> list[SickPartition]:
        return [each for each in self.sick if each.is_under_replicated]

    @property
    def fenced(self) -> list[int]:
        return [each.node_id for each in self.cluster.brokers if each.is_fenced]

    @property
    def missing(self) -> list[int]:
        """Brokers that partitions count on and the cluster does not tell of: forgotten, or down in an older one."""
        known = {each.node_id for each in self.cluster.brokers}
        return sorted({node for each in self.sick for node in each.replicas if node not in known})

    @property
    def silent_voters(self) -> list[QuorumReplica]:
        """Voters that the quorum's leader does not hear from."""
        quorum = self.quorum
        if quorum is None:
            return []
        return [each for each in quorum.voters if _is_silent(quorum, each)]

    @property
    def is_healthy(self) -> bool:
        return not any(self.problems())

    def problems(self) -> Iterator[str]:
        """The worst first, each with what it means."""
        if self.is_uncontrolled:
            yield (
                "no controller is active, does a majority of them run? Nothing can be created or changed, no leader "
                "replaced, and what is said of brokers and partitions may be old"
            )
        if self.offline:
            yield f"{_partitions(self.offline)} no leader: neither writes nor reads are possible there"
        if self.under_min_isr:
            yield f"{_partitions(self.under_min_isr)} too few replicas in sync: writes with acks=all are refused"
        if self.under_replicated:
            yield f"{_partitions(self.under_replicated)} replicas that are not in sync"
        for node in self.fenced:
            yield f"broker {node} does not serve: start it, or {self._without(node)}"
        for node in self.missing:
            yield f"broker {node} is down or forgotten: start it, or {self._without(node)}"
        for broker in self.cluster.brokers:
            if broker.node_id in self.unreachable:
                yield f"broker {broker.node_id} does not answer at {Address(broker.host, broker.port)}"
        for voter in self.silent_voters:
            yield f"controller {voter.node_id} is not heard from{self._what_is_left()}"

    def advice(self) -> Iterator[str]:
        """What is well today, and would not be if one broker were lost."""
        brokers = [str(each.node_id) for each in self.cluster.brokers if not each.is_fenced]
        for topic, copies in self.thin.items():
            command = f"moldau reassign generate -t {topic} --brokers {','.join(brokers)}"
            has = "one copy" if copies == 1 else f"{copies} copies"
            yield (
                f"{topic} has {has}, of when there were fewer brokers; a plan for more: "
                f"{command} -r {min(INTERNAL_COPIES, len(brokers))} -o plan.json"
            )

    def _without(self, node: int) -> str:
        if any(node in each.replicas for each in self.sick):
            return f"move what it holds to others with: moldau broker drain {node}"
        return f"forget it with: moldau broker remove {node}"

    def _what_is_left(self) -> str:
        assert self.quorum is not None
        voters = len(self.quorum.voters)
        spare = voters - len(self.silent_voters) - (voters // 2 + 1)
        return f": {spare} more may fail" if spare > 0 else ": no other may fail"


async def examine(client: AsyncClient) -> Health:
    """Ask for everything at one time, as far as there is one; the controllers last, for they may let us wait."""
    cluster = await client.describe_cluster(with_fenced=True)
    topics = await client.describe_topics()
    min_isr = await _min_isr(client, [each.name for each in topics])
    unreachable = await _unreachable(client, [each.node_id for each in cluster.brokers if not each.is_fenced])
    quorum, moving, is_uncontrolled = await _from_controllers(client)
    return Health(
        cluster,
        quorum,
        is_uncontrolled,
        unreachable,
        len(topics),
        sum(len(each.partitions) for each in topics),
        tuple(_sick(topics, moving, min_isr)),
        len(moving),
        _thin(topics, sum(not each.is_fenced for each in cluster.brokers)),
    )


async def _from_controllers(
    client: AsyncClient,
) -> tuple[QuorumView | None, Mapping[TopicPartition, Reassignment], bool]:
    """The quorum, what is being moved, and whether nobody is there to tell. We do not wait as long as brokers do."""
    quorum: QuorumView | None = None
    try:
        async with asyncio.timeout(CONTROLLER_MS_MAX / 1000):
            quorum = await _unless_unsupported(Quorum(client).describe())
            moving = await _unless_unsupported(Reassignments(client).ongoing())
    except (TimeoutError, RequestTimedOut):
        return quorum, {}, True
    return quorum, moving or {}, quorum is not None and quorum.leader_id < 0


async def _unreachable(client: AsyncClient, brokers: Sequence[int]) -> tuple[int, ...]:
    async def answers(broker: int) -> bool:
        try:
            async with asyncio.timeout(BROKER_MS_MAX / 1000):
                await client.send(requests.describe_cluster(), node=broker)
        except (*SILENT, TimeoutError):
            return False
        return True

    found = await asyncio.gather(*map(answers, brokers))
    return tuple(broker for broker, does_answer in zip(brokers, found, strict=True) if not does_answer)


async def _unless_unsupported(asked: Any) -> Any:
    try:
        return await asked
    except (UnsupportedVersion, ClusterAuthorizationFailed):
        return None  # an older cluster, or one that does not tell us


async def _min_isr(client: AsyncClient, names: Sequence[str]) -> dict[str, int]:
    """How many replicas in sync each topic asks for."""
    found: dict[str, int] = {}
    for first in range(0, len(names), TOPICS_PER_REQUEST):
        request = _question(names[first : first + TOPICS_PER_REQUEST])
        answer = await client.persist(lambda request=request: client.send(request))  # type: ignore[misc]
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # deleted meanwhile
            check(result.error_code, result.error_message)
            values = [each.value for each in result.configs if each.name == MIN_ISR]
            found[result.resource_name] = int(values[0]) if values and values[0] else 1
    return found


def _question(names: Iterable[str]) -> Any:
    request = messages.DescribeConfigsRequest
    return request(
        resources=[
            request.DescribeConfigsResource(
                resource_type=ResourceKind.TOPIC, resource_name=name, configuration_keys=[MIN_ISR]
            )
            for name in names
        ]
    )


def _thin(topics: Iterable[TopicView], brokers: int) -> dict[str, int]:
    wanted = min(INTERNAL_COPIES, brokers)
    internal = (each for each in topics if each.is_internal and each.partitions)
    copies = {each.name: min(len(partition.replicas) for partition in each.partitions) for each in internal}
    return {name: count for name, count in copies.items() if count < wanted}


def _sick(
    topics: Iterable[TopicView], moving: Mapping[TopicPartition, Reassignment], min_isr: Mapping[str, int]
) -> Iterator[SickPartition]:
    for topic in topics:
        for each in topic.partitions:
            place = TopicPartition(topic.name, each.index)
            sick = _looked_at(place, each, moving.get(place), min_isr.get(topic.name, 1))
            if sick.is_offline or sick.is_under_min_isr or sick.is_under_replicated:
                yield sick


def _looked_at(
    place: TopicPartition, partition: PartitionView, moving: Reassignment | None, min_isr: int
) -> SickPartition:
    # Replicas that are still being filled are not missing yet.
    expected = len(moving.origin) if moving else len(partition.replicas)
    return SickPartition(
        place,
        partition.leader,
        partition.replicas,
        partition.isr,
        min(min_isr, expected),
        len(partition.isr) < expected,
    )


def _partitions(sick: Sequence[SickPartition]) -> str:
    return "1 partition has" if len(sick) == 1 else f"{len(sick)} partitions have"


def _is_silent(quorum: QuorumView, voter: QuorumReplica) -> bool:
    if voter.node_id == quorum.leader_id:
        return False
    behind_ms = quorum.behind_ms(voter)
    return behind_ms is None or behind_ms > VOTER_SILENT_MS
