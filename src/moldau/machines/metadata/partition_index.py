"""Index of partitions by broker, and of leaderless and reassigning ones, to avoid scanning all partitions."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.model.ids import TopicId

_NONE: Final[Mapping["PartitionKey", None]] = MappingProxyType({})


class PartitionKey(NamedTuple):
    """A partition of a topic, by id."""

    topic_id: TopicId
    partition: int


class PartitionIndex:
    """Follows the image delta by delta. The mappings are ordered, so that decisions do not depend on hashes."""

    def __init__(self) -> None:
        self._by_broker: dict[int, dict[PartitionKey, None]] = {}
        self._leaderless: dict[PartitionKey, None] = {}
        self._moving: dict[PartitionKey, None] = {}
        self._with_eligible: dict[PartitionKey, None] = {}

    def of(self, broker_id: int) -> Iterable[PartitionKey]:
        """Return the partitions with a replica on this broker."""
        return self._by_broker.get(broker_id, _NONE)

    @property
    def brokers(self) -> list[int]:
        """Return the brokers with any replica, registered or not."""
        return sorted(self._by_broker)

    @property
    def leaderless(self) -> Mapping[PartitionKey, None]:
        return self._leaderless

    @property
    def moving(self) -> Mapping[PartitionKey, None]:
        """The partitions being reassigned."""
        return self._moving

    @property
    def with_eligible(self) -> Mapping[PartitionKey, None]:
        """The partitions with a non-empty ELR."""
        return self._with_eligible

    def follow(self, old: MetadataImage, new: MetadataImage, delta: MetadataDelta) -> None:
        for topic in delta.removed.values():
            was = old.topics_by_id.get(topic.topic_id, topic)
            for index, partition in enumerate(was.partitions):
                self._remove(PartitionKey(topic.topic_id, index), partition)
        for topic_id, indexes in delta.changed.items():
            before = old.topics_by_id.get(topic_id)
            after = new.topics_by_id[topic_id]
            for index in sorted(indexes):
                self._update(PartitionKey(topic_id, index), _partition(before, index), after.partitions[index])

    def _update(self, key: PartitionKey, old: PartitionImage | None, new: PartitionImage) -> None:
        if old is None or old.replicas != new.replicas:
            if old is not None:
                self._remove_replicas(key, old)
            for broker_id in new.replicas:
                self._by_broker.setdefault(broker_id, {})[key] = None
        _set_membership(self._leaderless, key, not new.has_leader)
        _set_membership(self._moving, key, new.is_moving)
        _set_membership(self._with_eligible, key, bool(new.eligible_leader_replicas))

    def _remove(self, key: PartitionKey, partition: PartitionImage) -> None:
        self._remove_replicas(key, partition)
        self._leaderless.pop(key, None)
        self._moving.pop(key, None)
        self._with_eligible.pop(key, None)

    def _remove_replicas(self, key: PartitionKey, partition: PartitionImage) -> None:
        for broker_id in partition.replicas:
            held = self._by_broker[broker_id]
            held.pop(key, None)
            if not held:
                del self._by_broker[broker_id]


def _partition(topic: TopicImage | None, index: int) -> PartitionImage | None:
    return topic.partitions[index] if topic is not None and index < len(topic.partitions) else None


def _set_membership(mapping: dict[PartitionKey, None], key: PartitionKey, is_in: bool) -> None:
    if is_in:
        mapping[key] = None
    else:
        mapping.pop(key, None)
