"""Leaders propose who is in sync with them; a proposal that rests on an old state, or on old lives, is refused."""

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
    """Who shall be in sync, with the epoch of each as the leader knows it (-1 if it does not say)."""

    topic_id: TopicId
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True)
class IsrAnswered:
    """The answer about one partition: how it is now, or why it stays as it was."""

    topic_id: TopicId
    index: int
    partition: PartitionImage | None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decide_alter_partition(
    view: ClusterView, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
) -> Decision[Record, list[IsrAnswered]]:
    """Each partition is changed or refused by itself."""
    check_broker_epoch(view.image, broker_id, broker_epoch)
    records: list[Record] = []
    outcomes: dict[tuple[TopicId, int], IsrAnswered] = {}
    for proposal in proposals:
        key = (proposal.topic_id, proposal.index)
        if key in outcomes:
            continue
        try:
            topic = _checked(view.image, broker_id, proposal)
            outcomes[key] = _alter(view, topic, broker_id, proposal, records)
        except KafkaError as refusal:
            outcomes[key] = IsrAnswered(*key, None, refusal.code, refusal.message)
    return respond(list(outcomes.values()), records)


def _alter(
    view: ClusterView, topic: TopicImage, broker_id: int, proposal: IsrProposal, records: list[Record]
) -> IsrAnswered:
    draft = PartitionDraft(view, topic, proposal.index)
    proposed = {replica for replica, _ in proposal.isr}
    draft.isr = tuple(each for each in draft.replicas if each in proposed)
    draft.recovery = proposal.leader_recovery_state
    election = Election.UNCLEAN if view.allows_unclean(topic.name) else Election.CLEAN
    # Who proposes what is the case wants to be sure that nothing it proposed before is still to come.
    record = draft.record(election) or new_epoch(topic, proposal.index)
    records.append(record)
    partition = changed_partition(topic.partitions[proposal.index], record)
    if partition.leader != broker_id:  # the proposal completed a reassignment that takes the leadership away
        words = "The change completed a reassignment, and another replica leads now."
        return IsrAnswered(topic.topic_id, proposal.index, None, ErrorCode.NEW_LEADER_ELECTED, words)
    if partition.leader_epoch != proposal.leader_epoch:
        words = "The change completed a reassignment, and began a new leader epoch."
        return IsrAnswered(topic.topic_id, proposal.index, None, ErrorCode.FENCED_LEADER_EPOCH, words)
    return IsrAnswered(topic.topic_id, proposal.index, partition)


def _checked(image: MetadataImage, broker_id: int, proposal: IsrProposal) -> TopicImage:
    topic = image.topics_by_id.get(proposal.topic_id)
    if topic is None:
        raise UnknownTopicId
    if not 0 <= proposal.index < len(topic.partitions):
        raise UnknownTopicOrPartition
    partition = topic.partitions[proposal.index]
    _check_epochs(partition, broker_id, proposal)
    _check_isr(partition, proposal)
    _check_members(image, proposal)
    return topic


def _check_epochs(partition: PartitionImage, broker_id: int, proposal: IsrProposal) -> None:
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise NotController("The proposal is from a later state than this controller knows.")
    if proposal.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"The leader epoch is {partition.leader_epoch} by now.")
    if broker_id != partition.leader:
        raise InvalidRequest(f"Broker {broker_id} does not lead this partition.")
    if proposal.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion(f"The partition epoch is {partition.partition_epoch} by now.")


def _check_isr(partition: PartitionImage, proposal: IsrProposal) -> None:
    members = [broker_id for broker_id, _ in proposal.isr]
    if len(set(members)) != len(members) or any(each not in partition.replicas for each in members):
        raise InvalidRequest("Those in sync must be replicas, and each of them once.")
    if partition.leader not in members:
        raise InvalidRequest("A leader is always in sync with itself.")
    if proposal.leader_recovery_state not in (RECOVERED, RECOVERING):
        raise InvalidRequest("There is no such recovery state.")
    if proposal.leader_recovery_state == RECOVERING:
        if len(members) > 1:
            raise InvalidRequest("Nobody is in sync with a leader that still recovers.")
        if partition.leader_recovery_state == RECOVERED:
            raise InvalidRequest("A leader that has recovered does not go back.")


def _check_members(image: MetadataImage, proposal: IsrProposal) -> None:
    """A replica that began a new life, or is about to end this one, is not known to have what it had (KIP-903)."""
    for broker_id, epoch in proposal.isr:
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            raise IneligibleReplica(f"Broker {broker_id} is not registered, fenced or shutting down.")
        if epoch not in (NO_EPOCH, broker.epoch):
            raise IneligibleReplica(f"Broker {broker_id} has the epoch {broker.epoch}, not {epoch}.")
