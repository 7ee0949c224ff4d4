"""What changed between two images, so that a subscriber looks only at that."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from moldau.machines.metadata.image import Resource, TopicImage
from moldau.model.ids import TopicId


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """Topics by id, because a name may be deleted and taken again between two images."""

    created: Set[TopicId] = field(default_factory=frozenset)  # in the new image, not in the old
    removed: Mapping[TopicId, TopicImage] = field(default_factory=dict)  # as they last were
    changed: Mapping[TopicId, Set[int]] = field(default_factory=dict)  # partitions new or changed, created topics too
    configs: Set[Resource] = field(default_factory=frozenset)
    brokers: Set[int] = field(default_factory=frozenset)
    has_new_features: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.created or self.removed or self.changed or self.configs or self.brokers or self.has_new_features
        )

    def then(self, later: "MetadataDelta") -> "MetadataDelta":
        """This change and a later one as a single change."""
        gone = later.removed.keys()
        changed = {topic_id: indexes for topic_id, indexes in self.changed.items() if topic_id not in gone}
        for topic_id, indexes in later.changed.items():
            changed[topic_id] = changed.get(topic_id, frozenset()) | indexes
        # A topic that came and went between the two ends was never seen by anybody.
        removed = {topic_id: topic for topic_id, topic in later.removed.items() if topic_id not in self.created}
        return MetadataDelta(
            created=(self.created - gone) | later.created,
            removed={**self.removed, **removed},
            changed=changed,
            configs=self.configs | later.configs,
            brokers=self.brokers | later.brokers,
            has_new_features=self.has_new_features or later.has_new_features,
        )
