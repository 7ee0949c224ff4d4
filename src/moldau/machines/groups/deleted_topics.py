"""Deleted topics: their committed offsets are void, even if a new topic has the same name."""

from typing import NamedTuple

from moldau.machines.metadata.image import TopicImage
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire import messages


class DeletedTopic(NamedTuple):
    """A deleted topic."""

    topic_id: TopicId
    name: str
    until_ms: int  # wall time; an earlier commit without a topic id refers to the deleted topic

    def covers(self, committed: messages.OffsetCommitValue) -> bool:
        """Whether an offset committed under this name belongs to the deleted topic."""
        if committed.topic_id == NO_TOPIC_ID:
            return committed.commit_timestamp <= self.until_ms
        return committed.topic_id == self.topic_id


def is_deleted(committed: messages.OffsetCommitValue, topic: TopicImage | None) -> bool:
    """Whether an offset was committed for another topic than the current one of that name, if any.

    Offsets written by an older version, and offsets with an explicit expiration, carry no topic id.
    """
    return topic is None or (committed.topic_id != topic.topic_id and committed.topic_id != NO_TOPIC_ID)
