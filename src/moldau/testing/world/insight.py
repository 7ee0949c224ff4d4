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
    metadata = getattr(node, "_metadata", None)
    return metadata.image if metadata is not None else None


def quorum_of(node: Node) -> Quorum | None:
    """None before it takes part."""
    raise NotImplementedError


def replicas_of(node: Node) -> Iterator[Replica]:
    raise NotImplementedError
