"""Leader elections after a broker was fenced or unfenced."""

from collections.abc import Callable

from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import BrokerImage, PartitionImage, TopicImage
from moldau.machines.metadata.partition_draft import Election, PartitionDraft
from moldau.machines.metadata.settings import PARTITIONS_PER_DECISION_MAX
from moldau.model.ids import NO_NODE
from moldau.wire import messages

Change = messages.PartitionChangeRecord


def changes_without(
    view: ClusterView,
    broker_id: int,
    *,
    has_lost: bool = False,
    keeps_last: bool = False,
    at_most: float = PARTITIONS_PER_DECISION_MAX,
    affected: Callable[[PartitionImage], bool] | None = None,
) -> list[Change]:
    """Return the changes that remove this broker as leader and from the ISRs of all `affected` partitions.

    With `has_lost` it may have lost records and leaves the ELRs too. With `keeps_last` it can still be read: it stays
    where no other broker can lead without losing records. If `at_most` changes are returned there may be
    more; the caller repeats the call.
    """
    changes: list[Change] = []
    for key in view.index.of(broker_id):
        topic = view.topic(key)
        partition = topic.partitions[key.partition]
        is_in = broker_id in partition.isr or broker_id == partition.leader
        if not is_in and not (has_lost and broker_id in partition.eligible_leader_replicas):
            continue
        if affected is not None and not affected(partition):
            continue
        draft = PartitionDraft(view, topic, key.partition, without=broker_id)
        draft.isr = tuple(each for each in partition.isr if each != broker_id)
        if has_lost:
            draft.lost = broker_id
        change = draft.record(Election.CLEAN if keeps_last else _election(view, topic))
        if keeps_last and draft.leader == NO_NODE:
            continue
        if not _add(changes, change, at_most):
            break
    return changes


def changes_with(
    view: ClusterView, broker: BrokerImage, *, at_most: float = PARTITIONS_PER_DECISION_MAX
) -> list[Change]:
    """Return the changes for a broker with new online log dirs, or unfenced: leaderless partitions it may lead."""
    changes: list[Change] = []
    broker_id = broker.broker_id
    for key in view.index.leaderless:
        topic = view.topic(key)
        partition = topic.partitions[key.partition]
        if broker_id in partition.replicas and broker.has_online(partition.directory_of(broker_id)):
            draft = PartitionDraft(view, topic, key.partition, having=broker_id)
            if not _add(changes, draft.record(_election(view, topic)), at_most):
                break
    return changes


def changes_of_leaderless(view: ClusterView, *, at_most: float = PARTITIONS_PER_DECISION_MAX) -> list[Change]:
    """Return elections for leaderless partitions with an available replica."""
    changes: list[Change] = []
    for key in view.index.leaderless:
        topic = view.topic(key)
        change = PartitionDraft(view, topic, key.partition).record(_election(view, topic))
        if change is not None and change.leader >= 0 and not _add(changes, change, at_most):
            break
    return changes


def _election(view: ClusterView, topic: TopicImage) -> Election:
    return Election.UNCLEAN if view.allows_unclean(topic.name) else Election.CLEAN


def _add(changes: list[Change], change: Change | None, at_most: float) -> bool:
    if change is not None:
        changes.append(change)
    return len(changes) < at_most
