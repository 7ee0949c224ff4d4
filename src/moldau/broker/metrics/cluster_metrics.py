"""Metrics of the cluster: of the partitions that this node leads and, on controllers, of all partitions."""

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.metrics import catalogue
from moldau.broker.metrics.catalogue import Metric
from moldau.broker.metrics.prometheus_text import plain
from moldau.broker.partitions.table import Partitions
from moldau.broker.replicas.replicas import Replicas
from moldau.machines.metadata.image import MetadataImage

CONTROLLER = "controller"

_OF_CONTROLLERS: tuple[Metric, ...] = (
    catalogue.OFFLINE,
    catalogue.IMBALANCE,
    catalogue.TOPICS,
    catalogue.ALL_PARTITIONS,
    catalogue.ACTIVE_BROKERS,
    catalogue.FENCED_BROKERS,
)
_OF_BROKERS: tuple[Metric, ...] = (
    catalogue.PARTITIONS,
    catalogue.LEADERS,
    catalogue.UNDER_REPLICATED,
    catalogue.UNDER_MIN_ISR,
    catalogue.AT_MIN_ISR,
    catalogue.REASSIGNING,
    catalogue.OFFLINE_REPLICAS,
)


class ClusterMetricsHost(Protocol):
    """The parts of the broker that metrics of the cluster are read from."""

    @property
    def node_id(self) -> int: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def metadata(self) -> MetadataDriver: ...

    @property
    def partitions(self) -> Partitions: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def settings(self) -> BrokerSettings: ...


def cluster_lines(broker: ClusterMetricsHost) -> Iterator[str]:
    """Dashboards sum the values of brokers, and use those of any controller."""
    is_controller = CONTROLLER in broker.settings.process_roles
    here, everywhere = Counter[str](), Counter[str]()
    yield from _count_led(broker, here)
    if is_controller:
        yield from _count_all(broker, everywhere)
    for metric in _OF_BROKERS:
        yield from plain(metric, [((), here[metric.name])])
    for metric in _OF_CONTROLLERS:
        yield from plain(metric, [((), everywhere[metric.name])] if is_controller else [])
    yield from _replication(broker)
    yield from _raft(broker.metadata)
    yield from plain(catalogue.ACTIVE_CONTROLLERS, [((), int(broker.metadata.is_active))])
    yield from plain(catalogue.METADATA_OFFSET, [((), broker.image.offset)])


def _count_led(broker: ClusterMetricsHost, counts: Counter[str]) -> Iterator[str]:
    """Count partitions of this broker; yields an empty line for each."""
    for partition in broker.partitions.all():
        yield ""
        counts[catalogue.PARTITIONS.name] += 1
        counts[catalogue.OFFLINE_REPLICAS.name] += not partition.role.is_open
        state = broker.image.partition(*partition.name)
        if state is None or state.leader != broker.node_id:
            continue
        in_sync, wanted = len(state.isr), len(state.replicas) - len(state.adding_replicas)
        needed = min(partition.log.settings.min_insync_replicas, wanted)
        counts[catalogue.LEADERS.name] += 1
        counts[catalogue.UNDER_REPLICATED.name] += in_sync < wanted
        counts[catalogue.UNDER_MIN_ISR.name] += in_sync < needed
        counts[catalogue.AT_MIN_ISR.name] += in_sync == needed
        counts[catalogue.REASSIGNING.name] += state.is_moving


def _count_all(broker: ClusterMetricsHost, counts: Counter[str]) -> Iterator[str]:
    """Count all partitions; yields an empty line for each topic."""
    image = broker.image
    counts[catalogue.TOPICS.name] = len(image.topics)
    for topic in image.topics.values():
        yield ""
        counts[catalogue.ALL_PARTITIONS.name] += len(topic.partitions)
        for each in topic.partitions:
            counts[catalogue.OFFLINE.name] += not each.has_leader
            counts[catalogue.IMBALANCE.name] += each.leader != each.replicas[0]
    for registered in image.brokers.values():
        counts[(catalogue.FENCED_BROKERS if registered.is_fenced else catalogue.ACTIVE_BROKERS).name] += 1


def _replication(broker: ClusterMetricsHost) -> Iterator[str]:
    changes = broker.replicas.isr_changes
    numbers = (
        (catalogue.ISR_SHRINKS, changes.shrinks),
        (catalogue.ISR_EXPANDS, changes.expands),
        (catalogue.ISR_FAILURES, changes.failed_updates),
        (catalogue.FOLLOWER_LAG, _follower_lag(broker)),
    )
    for metric, number in numbers:
        yield from plain(metric, [((), number)])


def _follower_lag(broker: ClusterMetricsHost) -> int:
    lags = (
        leading.machine.end_offset - max(follower.end_offset, 0)
        for leading in broker.replicas.led
        for follower in leading.machine.followers.values()
    )
    return max(lags, default=0)


def _raft(metadata: MetadataDriver) -> Iterator[str]:
    machine = metadata.quorum.machine
    yield from plain(catalogue.RAFT_STATE, [((machine.role.value,), 1)])
    numbers = (
        (catalogue.RAFT_LEADER, metadata.leader_id),
        (catalogue.RAFT_EPOCH, metadata.epoch),
        (catalogue.RAFT_HIGH_WATERMARK, metadata.high_watermark),
        (catalogue.RAFT_END, metadata.end_offset),
        (catalogue.RAFT_VOTERS, len(machine.voters)),
    )
    for metric, number in numbers:
        yield from plain(metric, [((), number)])
