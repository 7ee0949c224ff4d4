"""Leaderships go back to preferred replicas: by the clock, or because somebody asks (ElectLeaders)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from moldau.machines.decision import Decision, SetTimer, respond
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.elections import Change, changes_of_leaderless
from moldau.machines.metadata.image import PartitionImage
from moldau.machines.metadata.partition_draft import Election, PartitionDraft
from moldau.machines.metadata.partition_index import PartitionKey
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import PARTITIONS_PER_REQUEST_MAX, PARTITIONS_PER_SLICE_MAX
from moldau.model.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from moldau.model.ids import NO_NODE

ELECTIONS_PER_CHECK_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class LeadersChecked:
    """It is time to look whether partitions lack a leader that they could have, or have another than they should."""


class ElectionType(IntEnum):
    """What is asked for, by ElectLeaders' number."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class LeaderElected:
    """The answer about one partition."""

    topic: str
    index: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def check_timer(view: ClusterView) -> SetTimer:
    return SetTimer(LeadersChecked(), view.settings.leader_imbalance_check_interval_ms)


def next_look(changes: int) -> list[SetTimer]:
    """At once, where so many got a leader in one go that there may be more who can."""
    return [SetTimer(LeadersChecked(), 0)] if changes >= PARTITIONS_PER_SLICE_MAX else []


def decide_leaders_checked(view: ClusterView) -> Decision[Record, None]:
    """What can be led is led, and by whom it should be."""
    changes = changes_of_leaderless(view, at_most=ELECTIONS_PER_CHECK_MAX)
    if len(changes) < ELECTIONS_PER_CHECK_MAX and view.settings.auto_leader_rebalance_enable:
        changes.extend(_balancing(view, ELECTIONS_PER_CHECK_MAX - len(changes)))
    is_all = len(changes) < ELECTIONS_PER_CHECK_MAX
    return respond(None, changes, [check_timer(view) if is_all else SetTimer(LeadersChecked(), 0)])


def _balancing(view: ClusterView, at_most: int) -> Iterator[Change]:
    """Elections for partitions whose preferred replica could lead and does not."""
    for key, partition in _partitions(view):
        if at_most > 0 and partition.has_leader and _is_displaced(view, partition):
            change = _preferred(view, key)
            if change is not None:
                at_most -= 1
                yield change


def _is_displaced(view: ClusterView, partition: PartitionImage) -> bool:
    preferred = partition.replicas[0]
    return partition.leader != preferred and preferred in partition.isr and view.image.is_active(preferred)


def _partitions(view: ClusterView) -> Iterator[tuple[PartitionKey, PartitionImage]]:
    for topic in view.image.topics.values():
        for index, partition in enumerate(topic.partitions):
            yield PartitionKey(topic.topic_id, index), partition


def _preferred(view: ClusterView, key: PartitionKey) -> Change | None:
    """An election, if the preferred replica wins it."""
    topic = view.topic(key)
    draft = PartitionDraft(view, topic, key.partition)
    change = draft.record(Election.PREFERRED)
    return change if draft.leader == topic.partitions[key.partition].replicas[0] else None


def decide_elect_leaders(
    view: ClusterView, election_type: int, wanted: Sequence[tuple[str, int]] | None
) -> Decision[Record, list[LeaderElected]]:
    """Each partition gets another leader or is refused by itself; None stands for all that need one."""
    if election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        raise InvalidRequest(f"Unknown election type {election_type}.")
    if wanted is not None and len(wanted) > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolation("Excessively large number of partitions per request.")
    records: list[Record] = []
    outcomes: dict[tuple[str, int], LeaderElected] = {}
    for topic, index in _needy(view, ElectionType(election_type)) if wanted is None else wanted:
        if (topic, index) in outcomes:
            continue
        try:
            records.append(_elected(view, ElectionType(election_type), topic, index))
            outcomes[topic, index] = LeaderElected(topic, index)
        except KafkaError as refusal:
            outcomes[topic, index] = LeaderElected(topic, index, refusal.code, refusal.message)
    return respond(list(outcomes.values()), records)


def _needy(view: ClusterView, election_type: ElectionType) -> Iterator[tuple[str, int]]:
    for key, partition in _partitions(view):
        if not _is_settled(partition, election_type):
            yield view.topic(key).name, key.partition


def _is_settled(partition: PartitionImage, election_type: ElectionType) -> bool:
    if election_type is ElectionType.PREFERRED:
        return partition.leader == partition.replicas[0]
    return partition.has_leader


def _elected(view: ClusterView, election_type: ElectionType, name: str, index: int) -> Change:
    topic, partition = view.image.topics.get(name), view.image.partition(name, index)
    if topic is None:
        raise UnknownTopicOrPartition(f"No such topic as {name}")
    if partition is None:
        raise UnknownTopicOrPartition(f"No such partition as {name}-{index}")
    if _is_settled(partition, election_type):
        raise ElectionNotNeeded
    if election_type is ElectionType.PREFERRED:
        change = _preferred(view, PartitionKey(topic.topic_id, index))
        if change is None:
            raise PreferredLeaderNotAvailable
        return change
    draft = PartitionDraft(view, topic, index)
    change = draft.record(Election.UNCLEAN)
    if change is None or draft.leader == NO_NODE:
        raise EligibleLeadersNotAvailable
    return change
