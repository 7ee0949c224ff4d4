"""AlterPartition: validate ISR changes proposed by leaders; stale partition, leader or broker epochs are rejected."""

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.brokers import check_broker_epoch
from moldau.machines.metadata.builder import changed_partition
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.metadata.partition_draft import RECOVERED, RECOVERING, Election, PartitionDraft, new_epoch
from moldau.machines.metadata.records import Record
from moldau.model.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaError,
    NotController,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from moldau.model.ids import NO_EPOCH, TopicId


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A proposed ISR with the broker epoch of each member (-1 if unknown to the leader)."""

    topic_id: TopicId
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True)
class IsrResult:
    """The result for a partition: its new state, or an error."""

    topic_id: TopicId
    index: int
    partition: PartitionImage | None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decide_alter_partition(
    view: ClusterView, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
) -> Decision[Record, list[IsrResult]]:
    """Apply each proposal; each partition has its own error."""
    check_broker_epoch(view.image, broker_id, broker_epoch)
    records: list[Record] = []
    outcomes: dict[tuple[TopicId, int], IsrResult] = {}
    for proposal in proposals:
        key = (proposal.topic_id, proposal.index)
        if key in outcomes:
            continue
        try:
            topic = _checked(view.image, broker_id, proposal)
            outcomes[key] = _alter(view, topic, broker_id, proposal, records)
        except KafkaError as error:
            outcomes[key] = IsrResult(*key, None, error.code, error.message)
    return respond(list(outcomes.values()), records)


def _alter(
    view: ClusterView, topic: TopicImage, broker_id: int, proposal: IsrProposal, records: list[Record]
) -> IsrResult:
    draft = PartitionDraft(view, topic, proposal.index)
    proposed = {replica for replica, _ in proposal.isr}
    draft.isr = tuple(each for each in draft.replicas if each in proposed)
    draft.recovery = proposal.leader_recovery_state
    election = Election.UNCLEAN if view.allows_unclean(topic.name) else Election.CLEAN
    # Proposing the current ISR still bumps the partition epoch, which rules out any earlier proposal of this leader.
    record = draft.record(election) or new_epoch(topic, proposal.index)
    records.append(record)
    partition = changed_partition(topic.partitions[proposal.index], record)
    if partition.leader != broker_id:  # the change completed a reassignment that moves the leadership
        message = "The change completed a reassignment and elected another leader."
        return IsrResult(topic.topic_id, proposal.index, None, ErrorCode.NEW_LEADER_ELECTED, message)
    if partition.leader_epoch != proposal.leader_epoch:
        message = "The change completed a reassignment and bumped the leader epoch."
        return IsrResult(topic.topic_id, proposal.index, None, ErrorCode.FENCED_LEADER_EPOCH, message)
    return IsrResult(topic.topic_id, proposal.index, partition)


def _checked(image: MetadataImage, broker_id: int, proposal: IsrProposal) -> TopicImage:
    topic = image.topics_by_id.get(proposal.topic_id)
    if topic is None:
        raise UnknownTopicId
    if not 0 <= proposal.index < len(topic.partitions):
        raise UnknownTopicOrPartition
    partition = topic.partitions[proposal.index]
    _check_epochs(partition, broker_id, proposal)
    _check_isr(partition, proposal)
    _check_members(image, partition, proposal)
    return topic


def _check_epochs(partition: PartitionImage, broker_id: int, proposal: IsrProposal) -> None:
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise NotController("The request has a newer epoch than this controller.")
    if proposal.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"The current leader epoch is {partition.leader_epoch}.")
    if broker_id != partition.leader:
        raise InvalidRequest(f"Broker {broker_id} is not the leader of this partition.")
    if proposal.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion(f"The current partition epoch is {partition.partition_epoch}.")


def _check_isr(partition: PartitionImage, proposal: IsrProposal) -> None:
    members = [broker_id for broker_id, _ in proposal.isr]
    if len(set(members)) != len(members) or any(each not in partition.replicas for each in members):
        raise InvalidRequest("The ISR must consist of distinct replicas of the partition.")
    if partition.leader not in members:
        raise InvalidRequest("The ISR must include the leader.")
    if proposal.leader_recovery_state not in (RECOVERED, RECOVERING):
        raise InvalidRequest("Unknown leader recovery state.")
    if proposal.leader_recovery_state == RECOVERING:
        if len(members) > 1:
            raise InvalidRequest("A recovering leader must be the only ISR member.")
        if partition.leader_recovery_state == RECOVERED:
            raise InvalidRequest("A recovered leader cannot return to recovering.")


def _check_members(image: MetadataImage, partition: PartitionImage, proposal: IsrProposal) -> None:
    """Reject members with another broker epoch, and fenced or stopping ones: they may have lost records (KIP-903).

    So may those whose log dir is offline (KIP-858).
    """
    for broker_id, epoch in proposal.isr:
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            raise IneligibleReplica(f"Broker {broker_id} is not registered, fenced or shutting down.")
        if not broker.has_online(partition.directory_of(broker_id)):
            raise IneligibleReplica(f"The log dir of the replica on broker {broker_id} is offline.")
        if epoch not in (NO_EPOCH, broker.epoch):
            raise IneligibleReplica(f"Broker {broker_id} has broker epoch {broker.epoch}, not {epoch}.")
