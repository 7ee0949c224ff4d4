"""The subscribed topics of a group: their ids, and a hash to detect changes."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from moldau.machines.groups.consumer.group import Resolved
from moldau.machines.groups.consumer.member import Member
from moldau.machines.metadata.image import TopicImage
from moldau.model.ids import TopicId

NO_TOPICS_HASH: Final = 0


def topics_hash(names: Iterable[str], topics: Mapping[str, TopicImage]) -> int:
    """Return a hash that changes if one of these topics is created, deleted or gets partitions.

    Kafka also includes the racks of replicas; no assignor uses them, so they would only cause rebalances.
    """
    digest = blake2b(digest_size=8)
    known = [topics[name] for name in sorted(names) if name in topics]
    for topic in known:
        digest.update(b"%s %s %d\n" % (topic.name.encode(), topic.topic_id.hex().encode(), len(topic.partitions)))
    return int.from_bytes(digest.digest(), "big", signed=True) if known else NO_TOPICS_HASH


def subscribed_names(member: Member, resolved: Mapping[str, Resolved]) -> frozenset[str]:
    """Return a member's topics, by name and by its resolved regular expression."""
    if not member.regex or member.regex not in resolved:
        return member.topics
    return member.topics | resolved[member.regex].topics


def ids_of(names: Iterable[str], topics: Mapping[str, TopicImage]) -> frozenset[TopicId]:
    """Return the ids of the existing topics."""
    return frozenset(topics[name].topic_id for name in names if name in topics)


class SubscribedTopics:
    """Subscribed topic ids per member; members with equal subscriptions share one set."""

    def __init__(self, resolved: Mapping[str, Resolved], topics: Mapping[str, TopicImage]) -> None:
        self._resolved = resolved
        self._topics = topics
        self._sets: dict[tuple[frozenset[str], str], frozenset[TopicId]] = {}

    def of(self, member: Member) -> frozenset[TopicId]:
        key = member.topics, member.regex
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = ids_of(subscribed_names(member, self._resolved), self._topics)
        return found
