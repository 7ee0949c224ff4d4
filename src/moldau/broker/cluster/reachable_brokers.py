"""What of the cluster can be reached by those who came in through one listener, as Metadata tells it."""

from collections.abc import Iterator
from typing import Protocol

from moldau.machines.metadata.image import BrokerImage, MetadataImage, PartitionImage
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, Address


class ListenerView(Protocol):
    """The brokers of the cluster, and their addresses on a listener."""

    @property
    def image(self) -> MetadataImage: ...

    def reachable_brokers(self, listener: str) -> Iterator[tuple[BrokerImage, Address]]: ...


class ReachableBrokers:
    """Made once for each answer: the brokers that live and have an address on this listener."""

    __slots__ = ("_alive", "_known")

    def __init__(self, broker: ListenerView, listener: str) -> None:
        self._alive = frozenset(each.broker_id for each, _ in broker.reachable_brokers(listener))
        self._known = frozenset(each.broker_id for each in broker.image.brokers.values() if not each.is_fenced)

    def leader_of(self, partition: PartitionImage) -> tuple[int, ErrorCode]:
        """Who leads; nobody, and why, where the leader could not be reached."""
        if partition.leader in self._alive:
            return partition.leader, ErrorCode.NONE
        is_elsewhere = partition.leader in self._known
        return NO_NODE, ErrorCode.LISTENER_NOT_FOUND if is_elsewhere else ErrorCode.LEADER_NOT_AVAILABLE

    def offline_of(self, partition: PartitionImage) -> list[int]:
        if self._alive.issuperset(partition.replicas):
            return []
        return [each for each in partition.replicas if each not in self._alive]
