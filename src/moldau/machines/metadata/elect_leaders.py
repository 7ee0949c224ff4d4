"""Leader elections on request (ElectLeaders) and by timer: leaderless partitions and preferred leaders."""

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
from moldau.machines.metadata.settings import PARTITIONS_PER_DECISION_MAX, PARTITIONS_PER_REQUEST_MAX
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
    """Time to look for leaderless partitions that can have a leader, and for non-preferred leaders."""


class ElectionType(IntEnum):
    """Election types of ElectLeaders, by number."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class LeaderElected:
    """The result for a partition."""

    topic: str
    index: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def check_timer(view: ClusterView) -> SetTimer:
    return SetTimer(LeadersChecked(), view.settings.leader_imbalance_check_interval_ms)


def next_check(changes: int) -> list[SetTimer]:
    """Check again at once if this decision was full: there may be more."""
    return [SetTimer(LeadersChecked(), 0)] if changes >= PARTITIONS_PER_DECISION_MAX else []


def decide_leaders_checked(view: ClusterView) -> Decision[Record, None]:
    """Elect leaders for leaderless partitions, and preferred leaders."""
    changes = changes_of_leaderless(view, at_most=ELECTIONS_PER_CHECK_MAX)
    if len(changes) < ELECTIONS_PER_CHECK_MAX and view.settings.auto_leader_rebalance_enable:
        changes.extend(_preferred_elections(view, ELECTIONS_PER_CHECK_MAX - len(changes)))
    is_all = len(changes) < ELECTIONS_PER_CHECK_MAX
    return respond(None, changes, [check_timer(view) if is_all else SetTimer(LeadersChecked(), 0)])


def _preferred_elections(view: ClusterView, at_most: int) -> Iterator[Change]:
    """Yield elections of available preferred replicas that are not leaders."""
    for key, partition in _partitions(view):
        if at_most > 0 and partition.has_leader and _has_non_preferred_leader(view, partition):
            change = _preferred(view, key)
            if change is not None:
                at_most -= 1
                yield change


def _has_non_preferred_leader(view: ClusterView, partition: PartitionImage) -> bool:
    preferred = partition.replicas[0]
    is_online = preferred in partition.isr and view.image.is_online(preferred, partition)
    return partition.leader != preferred and is_online


def _partitions(view: ClusterView) -> Iterator[tuple[PartitionKey, PartitionImage]]:
    for topic in view.image.topics.values():
        for index, partition in enumerate(topic.partitions):
            yield PartitionKey(topic.topic_id, index), partition


def _preferred(view: ClusterView, key: PartitionKey) -> Change | None:
    """Return an election if the preferred replica wins it."""
    topic = view.topic(key)
    draft = PartitionDraft(view, topic, key.partition)
    change = draft.record(Election.PREFERRED)
    return change if draft.leader == topic.partitions[key.partition].replicas[0] else None


def decide_elect_leaders(
    view: ClusterView, election_type: int, wanted: Sequence[tuple[str, int]] | None
) -> Decision[Record, list[LeaderElected]]:
    """Elect leaders; each partition has its own error. None stands for all partitions that need an election."""
    if election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        raise InvalidRequest(f"Unknown election type {election_type}.")
    if wanted is not None and len(wanted) > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolation("Excessively large number of partitions per request.")
    records: list[Record] = []
    outcomes: dict[tuple[str, int], LeaderElected] = {}
    for topic, index in _partitions_needing_election(view, ElectionType(election_type)) if wanted is None else wanted:
        if (topic, index) in outcomes:
            continue
        try:
            records.append(_elected(view, ElectionType(election_type), topic, index))
            outcomes[topic, index] = LeaderElected(topic, index)
        except KafkaError as error:
            outcomes[topic, index] = LeaderElected(topic, index, error.code, error.message)
    return respond(list(outcomes.values()), records)


def _partitions_needing_election(view: ClusterView, election_type: ElectionType) -> Iterator[tuple[str, int]]:
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
