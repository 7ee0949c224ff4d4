"""The states of a share group's partitions, deleted at the share coordinators on request of an administrator."""

from collections.abc import Sequence

from moldau.broker.handlers.contexts import ShareHost
from moldau.model.errors import CoordinatorNotAvailable
from moldau.model.ids import TopicId


async def delete_states(broker: ShareHost, group_id: str, topic_ids: Sequence[TopicId] | None) -> None:
    """Delete the states of these topics, or of all; raises if the group has members, or if some are not deleted.

    A deletion that fails halfway is repeated completely by the next request.
    """
    shard = broker.groups.shard_of(group_id)
    states = await shard.commit(lambda machine: machine.decide_begin_share_deletion(group_id, topic_ids, now=shard.now))
    if not states:
        return
    deleted = await broker.share_persister.delete_all(group_id, states)
    done = [topic_id for topic_id, indexes in states.items() if deleted.get(topic_id) == indexes]
    await shard.commit(lambda machine: machine.decide_share_states_deleted(group_id, done, now=shard.now))
    if len(done) < len(states):
        raise CoordinatorNotAvailable("The states of some share partitions could not be deleted; retry.")
