"""The one place that looks into a running node: what the probes want to know of it, and nothing that changes it."""

from collections.abc import Iterator
from dataclasses import dataclass

from moldau.machines.metadata.image import MetadataImage
from moldau.node.node import Node


@dataclass(frozen=True, slots=True)
class Quorum:
    """The raft machine of a node."""

    epoch: int
    is_leader: bool
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition as one node holds it. `isr` is what a leader counts by, committed or proposed."""

    folder: str
    leader_epoch: int
    is_leader: bool
    high_watermark: int
    end_offset: int
    isr: tuple[int, ...] = ()


def image_of(node: Node) -> MetadataImage | None:
    """The newest committed one that the node knows; None before it has begun to read its log."""
    metadata = getattr(node, "_metadata", None)
    return metadata.image if metadata is not None else None


def quorum_of(node: Node) -> Quorum | None:
    """None before it takes part."""
    metadata = node._metadata
    return Quorum(metadata.epoch, metadata.is_active, metadata.high_watermark)


def replicas_of(node: Node) -> Iterator[Replica]:
    for partition in node.broker.partitions.all():
        if partition.is_open:
            yield Replica(
                str(partition.name),
                partition.leader_epoch,
                partition.is_leader,
                partition.high_watermark,
                partition.log.end_offset,
                partition.leading.machine.isr if partition.leading is not None else (),
            )
