"""The brokers and leaders that clients of one listener can reach, for Metadata responses."""

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

    @property
    def node_id(self) -> int: ...

    def gives_up(self, partition: PartitionImage) -> bool:
        """Whether this broker leaves the leadership to another one."""
        ...


class ReachableBrokers:
    """Built per response: the live brokers with an address on this listener."""

    __slots__ = ("_alive", "_broker", "_known")

    def __init__(self, broker: ListenerView, listener: str) -> None:
        self._broker = broker
        self._alive = frozenset(each.broker_id for each, _ in broker.reachable_brokers(listener))
        self._known = frozenset(each.broker_id for each in broker.image.brokers.values() if not each.is_fenced)

    def leader_of(self, partition: PartitionImage) -> tuple[int, ErrorCode]:
        """The leader; none, with an error code, if it cannot be reached through this listener."""
        if partition.leader == self._broker.node_id and self._broker.gives_up(partition):
            return NO_NODE, ErrorCode.LEADER_NOT_AVAILABLE
        if partition.leader in self._alive:
            return partition.leader, ErrorCode.NONE
        is_elsewhere = partition.leader in self._known
        return NO_NODE, ErrorCode.LISTENER_NOT_FOUND if is_elsewhere else ErrorCode.LEADER_NOT_AVAILABLE

    def offline_of(self, partition: PartitionImage) -> list[int]:
        if self._alive.issuperset(partition.replicas):
            return []
        return [each for each in partition.replicas if each not in self._alive]
