"""Start offsets of share groups: which share partitions have a state, and how an administrator changes or deletes it.

The states themselves are at the share coordinator. The caller changes them there between two decisions here; if it
fails in between, the group has a record of what was begun, and the administrator repeats the request.
"""

from collections.abc import Mapping, Sequence, Set

from moldau.machines.groups.draft import Draft
from moldau.machines.groups.share.group import ShareGroup
from moldau.machines.groups.share.records import epoch_record, state_partitions_record
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import TopicId

States = Mapping[TopicId, frozenset[int]]
"""Share partitions by topic id."""


def initialized(group: ShareGroup) -> States:
    """Return the partitions whose states exist."""
    return {topic_id: state.partitions for topic_id, state in group.states.initialized.items()}


def alter(draft: Draft, group: ShareGroup, partitions: Mapping[TopicId, Set[int]], image: MetadataImage) -> int:
    """Mark partitions as initialized in a new group epoch, which fences leaders that know an older state.

    Without partitions nothing changes; in particular, no group is created.
    """
    group.check_delete()
    if not partitions:
        return group.epoch
    states = group.states
    for topic_id, indexes in partitions.items():
        name = image.topic_name(topic_id)
        if name is not None:
            states = states.begin(topic_id, name, indexes)
            states = states.complete(topic_id, name, indexes)
    epoch = group.epoch + 1
    draft.records.append(epoch_record(group.group_id, epoch, group.metadata_hash))
    draft.records.append(state_partitions_record(group.group_id, states))
    return epoch


def begin_deletion(
    draft: Draft, group: ShareGroup, topic_ids: Sequence[TopicId] | None, image: MetadataImage
) -> States:
    """Mark topics as deleting. A deletion that was begun earlier is included: its states may still exist."""
    group.check_delete()
    known = group.states.topic_ids()
    chosen = known if topic_ids is None else known.intersection(topic_ids)
    found: dict[TopicId, frozenset[int]] = {}
    names: dict[TopicId, str] = {}
    for topic_id in chosen:
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:  # the share coordinator deletes the states of a deleted topic by itself
            names[topic_id] = topic.name
            found[topic_id] = frozenset(range(len(topic.partitions)))
    if names:
        draft.records.append(state_partitions_record(group.group_id, group.states.begin_deletion(names)))
    return found


def complete_deletion(draft: Draft, group: ShareGroup, topic_ids: Sequence[TopicId]) -> None:
    """Forget deleted states, except of topics that members have subscribed to again meanwhile."""
    done = [each for each in topic_ids if each in group.states.deleting]
    if done:
        draft.records.append(state_partitions_record(group.group_id, group.states.forget(done)))
