"""Topics that are gone: what was committed for them counts for nobody, whatever topic has their name now."""

from typing import NamedTuple

from moldau.machines.metadata.image import TopicImage
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire import messages


class GoneTopic(NamedTuple):
    """A topic that was deleted."""

    topic_id: TopicId
    name: str
    until_ms: int  # in wall time: by then a commit that does not say the topic's id meant the one that is gone

    def has(self, committed: messages.OffsetCommitValue) -> bool:
        """Whether an offset that was committed under its name was committed for it."""
        if committed.topic_id == NO_TOPIC_ID:
            return committed.commit_timestamp <= self.until_ms
        return committed.topic_id == self.topic_id


def is_gone(committed: messages.OffsetCommitValue, topic: TopicImage | None) -> bool:
    """Whether an offset was committed for another topic than the one that has the name now, if there is one.

    Offsets that were written by an older version, or that say when they expire, do not tell the id of their topic.
    """
    return topic is None or (committed.topic_id != topic.topic_id and committed.topic_id != NO_TOPIC_ID)
