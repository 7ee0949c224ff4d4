"""Partition reassignment (KIP-455): add replicas, wait until they are in sync, then remove the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.metadata.partition_draft import Election, PartitionDraft
from moldau.machines.metadata.placement import check_assignment
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import PARTITIONS_PER_REQUEST_MAX
from moldau.model.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
    NoReassignmentInProgress,
    PolicyViolation,
    UnknownTopicOrPartition,
)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Target replicas of a partition, preferred leader first; None cancels a reassignment in progress."""

    topic: str
    index: int
    replicas: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Reassigned:
    """The result for a partition: started, completed at once, or an error."""

    topic: str
    index: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decide_alter_reassignments(
    view: ClusterView, wanted: Sequence[Reassignment], *, may_change_factor: bool = True
) -> Decision[Record, list[Reassigned]]:
    """Start or cancel reassignments; each partition has its own error. A new target replaces one in progress."""
    if len(wanted) > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolation("Excessively large number of partitions per request.")
    records: list[Record] = []
    outcomes: dict[tuple[str, int], Reassigned] = {}
    for each in wanted:
        key = (each.topic, each.index)
        try:
            if key in outcomes:
                raise InvalidRequest("A partition appears more than once.")
            record = _record(view, each, may_change_factor)
            records.extend([record] if record is not None else [])
            outcomes[key] = Reassigned(*key)
        except KafkaError as error:
            outcomes.setdefault(key, Reassigned(*key, error.code, error.message))
    return respond(list(outcomes.values()), records)


def _record(view: ClusterView, wanted: Reassignment, may_change_factor: bool) -> Record | None:
    topic = view.image.topics.get(wanted.topic)
    partition = view.image.partition(wanted.topic, wanted.index)
    if topic is None or partition is None:
        raise UnknownTopicOrPartition(f"Unable to find a topic partition named {wanted.topic}-{wanted.index}.")
    original = tuple(each for each in partition.replicas if each not in partition.adding_replicas)
    if wanted.replicas is None:
        if not partition.is_moving:
            raise NoReassignmentInProgress
        return _move(view, topic, wanted.index, original, original)
    check_assignment(view.image, wanted.replicas, None, held_by=partition.replicas)
    if not may_change_factor and len(wanted.replicas) != len(original):
        raise InvalidReplicationFactor(
            f"The replication factor is changed from {len(original)} to {len(wanted.replicas)}"
        )
    return _move(view, topic, wanted.index, original, tuple(wanted.replicas))


def _move(
    view: ClusterView, topic: TopicImage, index: int, original: tuple[int, ...], target: tuple[int, ...]
) -> Record | None:
    draft = PartitionDraft(view, topic, index)
    draft.adding = tuple(each for each in target if each not in original)
    draft.removing = tuple(each for each in original if each not in target)
    draft.replicas = (*target, *draft.removing) if target != original else original
    draft.isr = tuple(each for each in draft.isr if each in draft.replicas)
    _check_staying(view, topic, topic.partitions[index], draft)
    return draft.record(Election.UNCLEAN if view.allows_unclean(topic.name) else Election.CLEAN)


def _check_staying(view: ClusterView, topic: TopicImage, partition: PartitionImage, draft: PartitionDraft) -> None:
    """Reject a cancellation that would remove the only ISR member: it must not lose acknowledged records."""
    best = partition.isr or partition.eligible_leader_replicas or partition.last_known_elr
    if not any(each in draft.replicas for each in best) and not view.allows_unclean(topic.name):
        raise InvalidReplicaAssignment(
            f"Unable to revert partition assignment for {topic.name} because it would require an unclean leader "
            "election."
        )


@dataclass(frozen=True, slots=True)
class Move:
    """A partition being reassigned."""

    topic: str
    index: int
    partition: PartitionImage


def moves(view: ClusterView, wanted: Sequence[tuple[str, int]] | None) -> Iterator[Move]:
    """Yield the reassignments in progress, of all or of the given partitions."""
    if wanted is None:
        for key in view.index.moving:
            topic = view.topic(key)
            yield Move(topic.name, key.partition, topic.partitions[key.partition])
    else:
        yield from _named_moves(view.image, wanted)


def _named_moves(image: MetadataImage, wanted: Sequence[tuple[str, int]]) -> Iterator[Move]:
    for name, index in dict.fromkeys(wanted):
        partition = image.partition(name, index)
        if partition is not None and partition.is_moving:
            yield Move(name, index, partition)
