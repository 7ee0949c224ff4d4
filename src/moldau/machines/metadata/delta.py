"""The difference between two images, so that subscribers only process changes."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from moldau.machines.metadata.image import MetadataImage, QuotaEntity, Resource, TopicImage
from moldau.model.ids import TopicId


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """Topics by id, because a name may be deleted and created again between two images."""

    created: Set[TopicId] = field(default_factory=frozenset)  # in the new image only
    removed: Mapping[TopicId, TopicImage] = field(default_factory=dict)  # with their last state
    # New or changed partitions, including those of created topics
    changed: Mapping[TopicId, Set[int]] = field(default_factory=dict)
    configs: Set[Resource] = field(default_factory=frozenset)
    brokers: Set[int] = field(default_factory=frozenset)
    has_new_features: bool = False
    client_quotas: Set[QuotaEntity] = field(default_factory=frozenset)
    has_new_acls: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.created
            or self.removed
            or self.changed
            or self.configs
            or self.brokers
            or self.has_new_features
            or self.client_quotas
            or self.has_new_acls
        )

    def then(self, later: "MetadataDelta") -> "MetadataDelta":
        """Combine this delta and a later one."""
        gone = later.removed.keys()
        changed = {topic_id: indexes for topic_id, indexes in self.changed.items() if topic_id not in gone}
        for topic_id, indexes in later.changed.items():
            changed[topic_id] = changed.get(topic_id, frozenset()) | indexes
        # A topic created and deleted in between was never visible.
        removed = {topic_id: topic for topic_id, topic in later.removed.items() if topic_id not in self.created}
        return MetadataDelta(
            created=(self.created - gone) | later.created,
            removed={**self.removed, **removed},
            changed=changed,
            configs=self.configs | later.configs,
            brokers=self.brokers | later.brokers,
            has_new_features=self.has_new_features or later.has_new_features,
            client_quotas=self.client_quotas | later.client_quotas,
            has_new_acls=self.has_new_acls or later.has_new_acls,
        )


def delta_between(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Compute a delta by comparing both images, without the records in between."""
    changed: dict[TopicId, Set[int]] = {}
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is not topic:
            indexes = _changed_partitions(before, topic)
            if indexes:
                changed[topic_id] = indexes
    resources, brokers = old.configs.keys() | new.configs.keys(), old.brokers.keys() | new.brokers.keys()
    return MetadataDelta(
        created=new.topics_by_id.keys() - old.topics_by_id.keys(),
        removed={topic_id: topic for topic_id, topic in old.topics_by_id.items() if topic_id not in new.topics_by_id},
        changed=changed,
        configs={each for each in resources if old.configs.get(each) != new.configs.get(each)},
        brokers={each for each in brokers if old.brokers.get(each) != new.brokers.get(each)},
        has_new_features=old.features != new.features,
        client_quotas=_changed_quotas(old, new),
        has_new_acls=old.acls is not new.acls and old.acls != new.acls,
    )


def _changed_quotas(old: MetadataImage, new: MetadataImage) -> Set[QuotaEntity]:
    before, after = old.client_quotas, new.client_quotas
    if before is after:
        return frozenset()
    return {each for each in before.keys() | after.keys() if before.get(each) != after.get(each)}


def _changed_partitions(old: TopicImage | None, new: TopicImage) -> Set[int]:
    before = old.partitions if old is not None else ()
    return {
        index for index, partition in enumerate(new.partitions) if index >= len(before) or before[index] != partition
    }
