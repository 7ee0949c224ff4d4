"""The one place that looks into a running node: what the probes want to know of it, and nothing that changes it."""

from collections.abc import Iterator
from typing import NamedTuple

from moldau.broker.partitions.partition import Partition
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.raft import ElectionState
from moldau.machines.replication import LeaderMachine
from moldau.model.ids import NO_EPOCH, TopicId, TopicPartition
from moldau.node.node import Node


class Quorum(NamedTuple):
    """The raft machine of a node."""

    epoch: int
    is_leader: bool
    high_watermark: int
    kept: ElectionState | None = None  # what it holds for written down; None while it is being written, or cannot be


class Replica(NamedTuple):
    """A partition as one node holds it. `isr` is what its leader believes to be committed."""

    name: TopicPartition
    leader_epoch: int
    is_leader: bool
    high_watermark: int
    end_offset: int
    isr: tuple[int, ...] = ()
    proposed: tuple[tuple[int, int], ...] = ()  # and what it has asked the controller for, with each one's broker epoch
    proposed_in: int = NO_EPOCH  # in which partition epoch


def image_of(node: Node) -> MetadataImage | None:
    """The newest committed one that the node knows; None before it has begun to read its log."""
    metadata = getattr(node, "_metadata", None)
    return metadata.image if metadata is not None else None


def quorum_of(node: Node) -> Quorum | None:
    """None before it takes part."""
    quorum = node._metadata._quorum
    if quorum is None:
        return None
    machine = quorum.machine
    is_writing = quorum._is_stepping or quorum._waiting_for_disk is not None
    # Whoever has given up, because it could not be written, says nothing any more.
    kept = None if is_writing or quorum._is_stopped else machine._quorum._persisted
    return Quorum(machine.epoch, machine.is_leader, machine.high_watermark, kept)


def replicas_of(node: Node) -> Iterator[Replica]:
    for partition in node.broker.partitions.all():
        yield _replica(partition)


def copies_of(node: Node) -> Iterator[tuple[TopicPartition, TopicId]]:
    """The partitions that it holds, and of which topic: a name may have been given again."""
    for partition in node.broker.partitions.all():
        yield partition.name, partition.topic_id


def stable_offsets_of(node: Node, topic: str) -> Iterator[tuple[Replica, int]]:
    """The partitions of a topic that this node leads, each with its last stable offset."""
    for partition in node.broker.partitions.all():
        if partition.is_leader and partition.name.topic == topic:
            yield _replica(partition), partition.last_stable_offset


def led_by(node: Node, topics: tuple[str, ...]) -> Iterator[Replica]:
    """The partitions of these topics that this node leads."""
    for partition in node.broker.partitions.all():
        if partition.is_leader and partition.name.topic in topics:
            yield _replica(partition)


def has_ends_in_doubt(node: Node) -> bool:
    """Whether it has decided how a transaction ends, and that is not committed."""
    return any(held.effects for shard in node.broker.transactions.shards() for held in shard._driver._held)


def has_markers_to_send(node: Node) -> bool:
    """Whether it has decided so for good, and some partitions have not heard of it."""
    return node.broker.transactions.markers.backlog > 0


def has_offsets_to_tell(node: Node) -> bool:
    """Whether it coordinates groups that have committed something."""
    return any(shard.is_ready and not shard.is_empty for shard in node.broker.groups.shards())


def has_followers_apart(node: Node) -> bool:
    """Whether one of those in sync has more of a partition that it leads than is committed, and another has not."""
    for machine in _leaders(node):
        ends = [each.end_offset for replica, each in machine.followers.items() if replica in machine.isr]
        if len(ends) > 1 and min(ends) == machine.high_watermark < max(ends):
            return True
    return False


def joining_of(node: Node) -> int | None:
    """Somebody who is to join the ISR of a partition that it leads, if the controller was asked for it."""
    for machine in _leaders(node):
        for member in machine.proposal.isr if machine.proposal is not None else ():
            if member not in machine.isr:
                return member
    return None


def _leaders(node: Node) -> Iterator[LeaderMachine]:
    for partition in node.broker.partitions.all():
        if partition.leading is not None:
            yield partition.leading.machine


def _replica(partition: Partition) -> Replica:
    leading = partition.leading
    proposal = leading.machine.proposal if leading is not None else None
    return Replica(
        partition.name,
        partition.leader_epoch,
        partition.is_leader,
        partition.high_watermark,
        partition.log.end_offset,
        leading.machine.isr if leading is not None else (),
        tuple(zip(proposal.isr, proposal.broker_epochs, strict=True)) if proposal is not None else (),
        proposal.partition_epoch if proposal is not None else NO_EPOCH,
    )
