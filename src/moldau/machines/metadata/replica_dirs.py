"""AssignReplicasToDirs: brokers report the log directory of each replica, or that a replica is lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.brokers import check_broker_epoch
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import BrokerImage, PartitionImage, TopicImage
from moldau.machines.metadata.partition_draft import Election, PartitionDraft, new_epoch
from moldau.machines.metadata.records import Record
from moldau.model.errors import (
    EligibleLeadersNotAvailable,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from moldau.model.ids import LOST_DIRECTORY, NO_NODE, DirectoryId, TopicId
from moldau.wire import messages

LOST: Final = LOST_DIRECTORY


@dataclass(frozen=True, slots=True)
class ReplicaDirAssignment:
    """A broker's replica of a partition is in this directory, or LOST."""

    topic_id: TopicId
    index: int
    directory: DirectoryId


@dataclass(frozen=True, slots=True)
class ReplicaDirResult:
    """The result for a replica."""

    copy: ReplicaDirAssignment
    error: ErrorCode = ErrorCode.NONE


def decide_assign_replicas_to_dirs(
    view: ClusterView, broker_id: int, broker_epoch: int, copies: Sequence[ReplicaDirAssignment]
) -> Decision[Record, list[ReplicaDirResult]]:
    """Record directories; each replica has its own error."""
    broker = check_broker_epoch(view.image, broker_id, broker_epoch)
    records: list[Record] = []
    noted: dict[tuple[TopicId, int], ReplicaDirResult] = {}
    for copy in copies:
        key = (copy.topic_id, copy.index)
        if key in noted:
            continue
        try:
            records.extend(_assign(view, broker, copy))
            noted[key] = ReplicaDirResult(copy)
        except KafkaError as error:
            noted[key] = ReplicaDirResult(copy, error.code)
    return respond(list(noted.values()), records)


def _assign(view: ClusterView, broker: BrokerImage, copy: ReplicaDirAssignment) -> list[Record]:
    topic = view.image.topics_by_id.get(copy.topic_id)
    if topic is None:
        raise UnknownTopicId
    if not 0 <= copy.index < len(topic.partitions):
        raise UnknownTopicOrPartition
    partition = topic.partitions[copy.index]
    if broker.broker_id not in partition.replicas:
        raise NotLeaderOrFollower(f"Broker {broker.broker_id} has no replica of this partition.")
    if copy.directory == LOST:
        return [_without_copy(view, broker.broker_id, topic, copy.index)]
    if copy.directory not in broker.directories:  # offline ones count: replicas there are offline too
        raise InvalidRequest(f"Broker {broker.broker_id} has no directory with this id.")
    return _placed(view, broker, topic, copy)


def _placed(view: ClusterView, broker: BrokerImage, topic: TopicImage, copy: ReplicaDirAssignment) -> list[Record]:
    partition, broker_id = topic.partitions[copy.index], broker.broker_id
    if partition.directory_of(broker_id) == copy.directory:
        return []
    record = _election(view, broker, topic, copy)
    record = record or messages.PartitionChangeRecord(partition_id=copy.index, topic_id=topic.topic_id)
    record.directories = [
        copy.directory if each == broker_id else partition.directory_of(each) for each in partition.replicas
    ]
    return [record]


def _election(
    view: ClusterView, broker: BrokerImage, topic: TopicImage, copy: ReplicaDirAssignment
) -> messages.PartitionChangeRecord | None:
    """Elect a leader if the replica turns out to be in an offline log dir, or in an online one of a leaderless
    partition."""
    partition, broker_id = topic.partitions[copy.index], broker.broker_id
    if not broker.has_online(copy.directory):
        draft = PartitionDraft(view, topic, copy.index, without=broker_id)
        draft.isr = tuple(each for each in partition.isr if each != broker_id)
        record = draft.record(Election.CLEAN)
        return record if draft.leader != NO_NODE else None
    if partition.has_leader or not broker.is_active:
        return None
    return PartitionDraft(view, topic, copy.index, having=broker_id).record(Election.CLEAN)


def _without_copy(view: ClusterView, broker_id: int, topic: TopicImage, index: int) -> messages.PartitionChangeRecord:
    """Remove the broker from the ISR, the ELR and as leader; another replica must have all records.

    Always bumps the leader epoch: the leader's progress of the lost replica is void.
    """
    partition = topic.partitions[index]
    _check_others(partition, broker_id)
    draft = PartitionDraft(view, topic, index, without=broker_id)
    draft.isr = tuple(each for each in partition.isr if each != broker_id)
    draft.lost = broker_id
    draft.damaged = broker_id
    election = Election.UNCLEAN if view.allows_unclean(topic.name) else Election.CLEAN
    record = draft.record(election) or new_epoch(topic, index)
    record.leader = draft.leader
    return record


def _check_others(partition: PartitionImage, broker_id: int) -> None:
    if broker_id not in partition.trusted:
        return
    if all(each == broker_id for each in (*partition.isr, *partition.eligible_leader_replicas)):
        raise EligibleLeadersNotAvailable("No other replica is known to have all committed records.")
