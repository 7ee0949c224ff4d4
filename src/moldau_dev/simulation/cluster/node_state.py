"""Read-only access to the internal state of a running node, for the probes. No other simulator module reads it."""

from collections.abc import Iterator
from typing import NamedTuple

from moldau.broker.partitions.partition import Partition
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.raft import ElectionState
from moldau.machines.replication import LeaderMachine
from moldau.model.ids import NO_EPOCH, TopicId, TopicPartition
from moldau.node.node import Node


class Quorum(NamedTuple):
    """The Raft state of a node."""

    epoch: int
    is_leader: bool
    high_watermark: int
    persisted: ElectionState | None = None  # None while it is being written, or after a failed write


class Replica(NamedTuple):
    """One replica of a partition. `isr` is the ISR that its leader takes for committed."""

    name: TopicPartition
    leader_epoch: int
    is_leader: bool
    high_watermark: int
    end_offset: int
    isr: tuple[int, ...] = ()
    proposed: tuple[tuple[int, int], ...] = ()  # ISR requested from the controller: member and broker epoch
    proposed_in: int = NO_EPOCH  # the partition epoch of the request


def image_of(node: Node) -> MetadataImage | None:
    """Return the newest committed image of the node; None before it reads its log."""
    metadata = getattr(node, "_metadata", None)
    return metadata.image if metadata is not None else None


def quorum_of(node: Node) -> Quorum | None:
    """Return the Raft state of a node; None before it has joined the quorum."""
    quorum = node._metadata._quorum
    if quorum is None:
        return None
    machine = quorum.machine
    is_writing = quorum._is_stepping or quorum._waiting_for_disk is not None
    # A node that stopped after a failed write sends nothing any more.
    persisted = None if is_writing or quorum._is_stopped else machine._quorum._persisted
    return Quorum(machine.epoch, machine.is_leader, machine.high_watermark, persisted)


def replicas_of(node: Node) -> Iterator[Replica]:
    for partition in node.broker.partitions.all():
        yield _replica(partition)


def copies_of(node: Node) -> Iterator[tuple[TopicPartition, TopicId]]:
    """Yield the replicas of a node with their topic ids, since a topic name may be reused."""
    for partition in node.broker.partitions.all():
        yield partition.name, partition.topic_id


def stable_offsets_of(node: Node, topic: str) -> Iterator[tuple[Replica, int]]:
    """Yield the partitions of a topic that this node leads, with their last stable offsets."""
    for partition in node.broker.partitions.all():
        if partition.role.is_leader and partition.name.topic == topic:
            yield _replica(partition), partition.last_stable_offset


def led_by(node: Node, topics: tuple[str, ...]) -> Iterator[Replica]:
    """Yield the partitions of the topics that this node leads."""
    for partition in node.broker.partitions.all():
        if partition.role.is_leader and partition.name.topic in topics:
            yield _replica(partition)


def has_uncommitted_decision(node: Node) -> bool:
    """Whether the node has a transaction decision that is not committed yet."""
    return any(held.effects for shard in node.broker.transactions.shards() for held in shard._driver._held)


def has_pending_markers(node: Node) -> bool:
    """Whether the node has committed decisions with unsent markers."""
    return node.broker.transactions.markers.backlog > 0


def has_committed_offsets(node: Node) -> bool:
    """Whether the node coordinates groups with committed offsets."""
    return any(shard.is_ready and not shard.is_empty for shard in node.broker.groups.shards())


def has_diverging_followers(node: Node) -> bool:
    """Whether, in a partition it leads, one follower in the ISR is ahead of the high watermark and another is not."""
    for machine in _leaders(node):
        ends = [each.end_offset for replica, each in machine.followers.items() if replica in machine.isr]
        if len(ends) > 1 and min(ends) == machine.high_watermark < max(ends):
            return True
    return False


def pending_joiner_of(node: Node) -> int | None:
    """Return a replica with a pending request to join the ISR of a partition that the node leads."""
    for machine in _leaders(node):
        for member in machine.proposal.isr if machine.proposal is not None else ():
            if member not in machine.isr:
                return member
    return None


def _leaders(node: Node) -> Iterator[LeaderMachine]:
    for partition in node.broker.partitions.all():
        if partition.role.leading is not None:
            yield partition.role.leading.machine


def _replica(partition: Partition) -> Replica:
    leading = partition.role.leading
    proposal = leading.machine.proposal if leading is not None else None
    return Replica(
        partition.name,
        partition.role.leader_epoch,
        partition.role.is_leader,
        partition.high_watermark,
        partition.log.end_offset,
        leading.machine.isr if leading is not None else (),
        tuple(zip(proposal.isr, proposal.broker_epochs, strict=True)) if proposal is not None else (),
        proposal.partition_epoch if proposal is not None else NO_EPOCH,
    )
