"""Cluster health: brokers, partitions and quorum, and a list of problems."""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from moldau.client import requests
from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.errors import check
from moldau.client.metadata import PartitionView, TopicView
from moldau.client.quorum import Quorum, QuorumReplica, QuorumView
from moldau.client.reassignments import Reassignment, Reassignments
from moldau.client.types import ClusterView, ResourceKind
from moldau.model.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InvalidConfig,
    RequestTimedOut,
    UnsupportedVersion,
)
from moldau.model.ids import Address, TopicPartition
from moldau.model.listeners import parse_listeners, parse_protocol_map
from moldau.model.open_listeners import open_listeners
from moldau.model.units import SECOND_MS
from moldau.wire import messages

Result = TypeVar("Result")

LISTENERS: Final = "listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
MIN_ISR: Final = "min.insync.replicas"
TOPICS_PER_REQUEST: Final = 500
CONTROLLER_MS_MAX: Final = 5 * SECOND_MS
BROKER_MS_MAX: Final = 5 * SECOND_MS
VOTER_LAG_MS_MAX: Final = 10_000  # voters fetch at least twice a second
INTERNAL_REPLICATION_FACTOR: Final = 3  # Kafka's default replication factor of internal topics
COORDINATORS: Final = {
    "__consumer_offsets": "some consumer groups have no coordinator: they cannot join, commit or fetch offsets",
    "__transaction_state": "some transactional ids have no coordinator: their transactions cannot begin or end",
    "__share_group_state": "some share groups have no coordinator for their state: they cannot acquire records",
}


@dataclass(frozen=True, slots=True)
class UnhealthyPartition:
    """A partition with a problem."""

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
class OfflineLogDir:
    """A log dir that its broker cannot write."""

    path: str
    free_bytes: int  # -1: unknown


@dataclass(frozen=True, slots=True)
class Health:
    """The state and problems of a cluster."""

    cluster: ClusterView
    quorum: QuorumView | None  # None if unsupported, not authorized, or timed out
    has_no_controller: bool
    unreachable: tuple[int, ...]  # registered and unfenced, but not responding
    topics: int
    partitions: int
    unhealthy: tuple[UnhealthyPartition, ...]
    reassigning: int
    offline_log_dirs: Mapping[int, tuple[OfflineLogDir, ...]]  # by broker
    under_provisioned: Mapping[str, int]  # internal topics with fewer replicas than brokers allow: their replica count
    open_listeners: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # by broker; see `open_listeners`
    without_min_isr: tuple[str, ...] = ()  # topics whose settings the client may not read

    @property
    def offline(self) -> list[UnhealthyPartition]:
        return [each for each in self.unhealthy if each.is_offline]

    @property
    def under_min_isr(self) -> list[UnhealthyPartition]:
        return [each for each in self.unhealthy if each.is_under_min_isr]

    @property
    def under_replicated(self) -> list[UnhealthyPartition]:
        return [each for each in self.unhealthy if each.is_under_replicated]

    @property
    def fenced(self) -> list[int]:
        return [each.node_id for each in self.cluster.brokers if each.is_fenced]

    @property
    def missing(self) -> list[int]:
        """Brokers that have replicas but are not registered: unregistered, or down in an older cluster."""
        known = {each.node_id for each in self.cluster.brokers}
        return sorted({node for each in self.unhealthy for node in each.replicas if node not in known})

    @property
    def lagging_voters(self) -> list[QuorumReplica]:
        """Voters that do not fetch from the leader."""
        quorum = self.quorum
        if quorum is None:
            return []
        return [each for each in quorum.voters if _is_lagging(quorum, each)]

    @property
    def is_healthy(self) -> bool:
        return not any(self.problems())

    def problems(self) -> Iterator[str]:
        """Yield the problems, the worst first, each with its consequence."""
        if self.has_no_controller:
            yield (
                "no active controller: is a majority of the controllers running? Nothing can be created or changed, no "
                "leader is elected, and the state of brokers and partitions may be stale"
            )
        if self.offline:
            yield f"{_partitions(self.offline)} no leader: writes and reads fail"
        yield from self._missing_coordinators()
        for node, log_dir in ((node, each) for node, offline in self.offline_log_dirs.items() for each in offline):
            free = f", {log_dir.free_bytes} bytes free" if log_dir.free_bytes >= 0 else ""
            yield (
                f"broker {node} cannot write its log dir {log_dir.path}{free}: free space or replace the disk; until "
                "then other replicas lead its partitions, and writes to those without another replica fail"
            )
        if self.under_min_isr:
            yield f"{_partitions(self.under_min_isr)} too few replicas in sync: writes with acks=all are rejected"
        if self.under_replicated:
            yield f"{_partitions(self.under_replicated)} replicas that are not in sync"
        for node in self.fenced:
            yield f"broker {node} is fenced: start it, or {self._without(node)}"
        for node in self.missing:
            yield f"broker {node} is down or unregistered: start it, or {self._without(node)}"
        for broker in self.cluster.brokers:
            if broker.node_id in self.unreachable:
                yield f"broker {broker.node_id} does not respond at {Address(broker.host, broker.port)}"
        for voter in self.lagging_voters:
            yield f"controller {voter.node_id} does not fetch{self._remaining_tolerance()}"

    def _missing_coordinators(self) -> Iterator[str]:
        for topic, effect in COORDINATORS.items():
            offline = [each for each in self.offline if each.partition.topic == topic]
            if offline:
                brokers = ", ".join(map(str, sorted({node for each in offline for node in each.replicas})))
                yield f"{_partitions(offline)} no leader in {topic}, so {effect}. Its replicas: brokers {brokers}"

    def advice(self) -> Iterator[str]:
        """Yield advice about topics that would not survive the loss of one broker, and about missing authentication."""
        brokers = [str(each.node_id) for each in self.cluster.brokers if not each.is_fenced]
        for topic, copies in self.under_provisioned.items():
            command = f"moldau reassign generate -t {topic} --brokers {','.join(brokers)}"
            has = "1 replica" if copies == 1 else f"{copies} replicas"
            yield (
                f"{topic} has {has}, created with fewer brokers; plan more with: "
                f"{command} -r {min(INTERNAL_REPLICATION_FACTOR, len(brokers))} -o plan.json"
            )

        for node, listeners in self.open_listeners.items():
            yield (
                f"anyone who can reach {', '.join(listeners)} of broker {node} may read, write and delete everything: "
                "no authentication is required there (docs/security.md)"
            )
        if self.without_min_isr:
            first, *others = self.without_min_isr
            more = f" and {len(others)} more" if others else ""
            yield (
                f"{MIN_ISR} of {first}{more} is not known, and not checked: that needs the operation DESCRIBE_CONFIGS "
                "on the topic"
            )

    def _without(self, node: int) -> str:
        if any(node in each.replicas for each in self.unhealthy):
            return f"move its replicas with: moldau broker drain {node}"
        return f"unregister it with: moldau broker remove {node}"

    def _remaining_tolerance(self) -> str:
        assert self.quorum is not None
        voters = len(self.quorum.voters)
        spare = voters - len(self.lagging_voters) - (voters // 2 + 1)
        return f": {spare} more may fail" if spare > 0 else ": no other may fail"


async def check_health(client: AsyncClient) -> Health:
    """Collect the state of the cluster; the controllers last, because they may time out."""
    cluster = await client.describe_cluster(with_fenced=True)
    topics = await client.describe_topics()
    min_isr = await _min_isr(client, [each.name for each in topics])
    unreachable = await _unreachable(client, [each.node_id for each in cluster.brokers if not each.is_fenced])
    serving = [each.node_id for each in cluster.brokers if not each.is_fenced and each.node_id not in unreachable]
    offline_log_dirs = await _offline_log_dirs(client, serving)
    without_authentication = await _open_listeners(client, serving)
    topics = sorted(topics, key=lambda each: (each.is_internal, each.name))
    quorum, moving, has_no_controller = await _from_controllers(client)
    return Health(
        cluster,
        quorum,
        has_no_controller,
        unreachable,
        len(topics),
        sum(len(each.partitions) for each in topics),
        tuple(_unhealthy(topics, moving, min_isr)),
        len(moving),
        offline_log_dirs,
        _under_provisioned(topics, sum(not each.is_fenced for each in cluster.brokers)),
        without_authentication,
        tuple(each.name for each in topics if each.name not in min_isr),
    )


async def _from_controllers(
    client: AsyncClient,
) -> tuple[QuorumView | None, Mapping[TopicPartition, Reassignment], bool]:
    """Return the quorum, ongoing reassignments, and whether the controllers timed out (sooner than brokers do)."""
    quorum: QuorumView | None = None
    try:
        async with asyncio.timeout(CONTROLLER_MS_MAX / 1000):
            quorum = await _unless_unsupported(Quorum(client).describe())
            moving = await _unless_unsupported(Reassignments(client).ongoing())
    except (TimeoutError, RequestTimedOut):
        return quorum, {}, True
    return quorum, moving or {}, quorum is not None and quorum.leader_id < 0


async def _unreachable(client: AsyncClient, brokers: Sequence[int]) -> tuple[int, ...]:
    async def responds(broker: int) -> bool:
        try:
            async with asyncio.timeout(BROKER_MS_MAX / 1000):
                await client.send(requests.describe_cluster(), node=broker)
        except (*REQUEST_FAILURES, TimeoutError):
            return False
        return True

    found = await asyncio.gather(*map(responds, brokers))
    return tuple(broker for broker, does_respond in zip(brokers, found, strict=True) if not does_respond)


async def _offline_log_dirs(client: AsyncClient, brokers: Sequence[int]) -> dict[int, tuple[OfflineLogDir, ...]]:
    """Ask each broker for log dirs with an error; one that may not or cannot respond has none."""

    async def find(broker: int) -> tuple[OfflineLogDir, ...]:
        try:
            async with asyncio.timeout(BROKER_MS_MAX / 1000):
                response = await client.send(messages.DescribeLogDirsRequest(topics=[]), node=broker)
        except (*REQUEST_FAILURES, TimeoutError):
            return ()
        failed = (each for each in response.results if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR)
        return tuple(OfflineLogDir(each.log_dir, each.usable_bytes) for each in failed)

    found = await asyncio.gather(*map(find, brokers))
    return {broker: log_dirs for broker, log_dirs in zip(brokers, found, strict=True) if log_dirs}


async def _open_listeners(client: AsyncClient, brokers: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Ask each broker for the settings of its listeners; one that may not or cannot respond has no open ones."""
    request = messages.DescribeConfigsRequest

    async def find(broker: int) -> tuple[str, ...]:
        resource = request.DescribeConfigsResource(
            resource_type=ResourceKind.BROKER, resource_name=str(broker), configuration_keys=None
        )
        try:
            async with asyncio.timeout(BROKER_MS_MAX / 1000):
                response = await client.send(request(resources=[resource]), node=broker)
            texts = {each.name: each.value or "" for result in response.results for each in result.configs}
            protocols = parse_protocol_map(texts.get(PROTOCOL_MAP, ""))
            bound = parse_listeners(LISTENERS, filter(None, texts.get(LISTENERS, "").split(",")), protocols)
        except (*REQUEST_FAILURES, TimeoutError, InvalidConfig):
            return ()
        return tuple(map(str, open_listeners(bound, texts)))

    found = await asyncio.gather(*map(find, brokers))
    return {broker: listeners for broker, listeners in zip(brokers, found, strict=True) if listeners}


async def _unless_unsupported(request: Awaitable[Result]) -> Result | None:
    try:
        return await request
    except (UnsupportedVersion, ClusterAuthorizationFailed):
        return None  # an older cluster, or not authorized


async def _min_isr(client: AsyncClient, names: Sequence[str]) -> dict[str, int]:
    """Return min.insync.replicas of each topic whose settings the client may read."""
    found: dict[str, int] = {}
    for first in range(0, len(names), TOPICS_PER_REQUEST):
        request = _min_isr_request(names[first : first + TOPICS_PER_REQUEST])
        response = await client.retry(lambda request=request: client.send(request))  # type: ignore[misc]
        for result in response.results:
            if result.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                continue  # deleted meanwhile, or not authorized
            check(result.error_code, result.error_message)
            values = [each.value for each in result.configs if each.name == MIN_ISR]
            found[result.resource_name] = int(values[0]) if values and values[0] else 1
    return found


def _min_isr_request(names: Iterable[str]) -> "messages.DescribeConfigsRequest":
    request = messages.DescribeConfigsRequest
    return request(
        resources=[
            request.DescribeConfigsResource(
                resource_type=ResourceKind.TOPIC, resource_name=name, configuration_keys=[MIN_ISR]
            )
            for name in names
        ]
    )


def _under_provisioned(topics: Iterable[TopicView], brokers: int) -> dict[str, int]:
    wanted = min(INTERNAL_REPLICATION_FACTOR, brokers)
    internal = (each for each in topics if each.is_internal and each.partitions)
    copies = {each.name: min(len(partition.replicas) for partition in each.partitions) for each in internal}
    return {name: count for name, count in copies.items() if count < wanted}


def _unhealthy(
    topics: Iterable[TopicView], moving: Mapping[TopicPartition, Reassignment], min_isr: Mapping[str, int]
) -> Iterator[UnhealthyPartition]:
    for topic in topics:
        for each in topic.partitions:
            topic_partition = TopicPartition(topic.name, each.index)
            unhealthy = _assess(topic_partition, each, moving.get(topic_partition), min_isr.get(topic.name, 1))
            if unhealthy.is_offline or unhealthy.is_under_min_isr or unhealthy.is_under_replicated:
                yield unhealthy


def _assess(
    topic_partition: TopicPartition, partition: PartitionView, moving: Reassignment | None, min_isr: int
) -> UnhealthyPartition:
    # Replicas that are being added are not missing yet.
    expected = len(moving.origin) if moving else len(partition.replicas)
    return UnhealthyPartition(
        topic_partition,
        partition.leader,
        partition.replicas,
        partition.isr,
        min(min_isr, expected),
        len(partition.isr) < expected,
    )


def _partitions(unhealthy: Sequence[UnhealthyPartition]) -> str:
    return "1 partition has" if len(unhealthy) == 1 else f"{len(unhealthy)} partitions have"


def _is_lagging(quorum: QuorumView, voter: QuorumReplica) -> bool:
    if voter.node_id == quorum.leader_id:
        return False
    behind_ms = quorum.behind_ms(voter)
    return behind_ms is None or behind_ms > VOTER_LAG_MS_MAX
