"""What a group reads, held against the topics that exist: their ids, and a hash that tells whether they changed."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from moldau.machines.groups.consumer.group import Resolved
from moldau.machines.groups.consumer.member import Member
from moldau.machines.metadata.image import TopicImage
from moldau.model.ids import TopicId

NO_TOPICS_HASH: Final = 0


def topics_hash(names: Iterable[str], topics: Mapping[str, TopicImage]) -> int:
    """A number that changes when one of these topics comes, goes or grows.

    Kafka also reckons in the racks of replicas; no assignor looks at them, so they would only cost rebalances.
    """
    digest = blake2b(digest_size=8)
    known = [topics[name] for name in sorted(names) if name in topics]
    for topic in known:
        digest.update(b"%s %s %d\n" % (topic.name.encode(), topic.topic_id.hex().encode(), len(topic.partitions)))
    return int.from_bytes(digest.digest(), "big", signed=True) if known else NO_TOPICS_HASH


def names_read_by(member: Member, resolved: Mapping[str, Resolved]) -> frozenset[str]:
    """What a member reads, by name and by its regular expression as far as that is resolved."""
    if not member.regex or member.regex not in resolved:
        return member.topics
    return member.topics | resolved[member.regex].topics


def ids_of(names: Iterable[str], topics: Mapping[str, TopicImage]) -> frozenset[TopicId]:
    """The ids of those topics that exist."""
    return frozenset(topics[name].topic_id for name in names if name in topics)


class Reading:
    """The topic ids that members read; many members that read the same share one set."""

    def __init__(self, resolved: Mapping[str, Resolved], topics: Mapping[str, TopicImage]) -> None:
        self._resolved = resolved
        self._topics = topics
        self._sets: dict[tuple[frozenset[str], str], frozenset[TopicId]] = {}

    def by(self, member: Member) -> frozenset[TopicId]:
        key = member.topics, member.regex
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = ids_of(names_read_by(member, self._resolved), self._topics)
        return found
