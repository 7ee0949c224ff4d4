"""CreateTopics and DeleteTopics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.configs import ConfigRules, config_record
from moldau.machines.metadata.image import MetadataImage, Resource, ResourceType
from moldau.machines.metadata.mutation_quota import UNLIMITED, MutationQuota
from moldau.machines.metadata.placement import (
    Placement,
    assigned,
    check_assignment,
    partition_record,
    place_replicas,
)
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import (
    PARTITIONS_PER_REQUEST_MAX,
    RESOURCES_PER_REQUEST_MAX,
    MetadataSettings,
)
from moldau.machines.metadata.topic_names import can_collide, check_topic_name, collision_key, collision_keys
from moldau.model.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownServerFailure,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire import messages

UNSET: Final = -1
UNKNOWN_TOPIC: Final = "This server does not host this topic-partition."
UNKNOWN_TOPIC_ID: Final = "This server does not host this topic ID."


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A requested topic. With assignments, partition count and replication factor are unset."""

    name: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Sequence[tuple[int, Sequence[int]]] = ()  # (partition, brokers)
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """The result for a topic; with `validate_only` the topic as it would be."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: TopicId = NO_TOPIC_ID
    partitions: int = UNSET
    replication_factor: int = UNSET
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicReference:
    """A topic by name or by id."""

    name: str | None = None
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The result for a topic; with name and id if both are known."""

    name: str | None
    topic_id: TopicId
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def topic_id_from(randomness: bytes) -> TopicId:
    """Build a random (version 4) UUID from 16 random bytes, never one that Kafka reserves."""
    raw = bytearray(randomness[:16])
    if len(raw) != 16:
        raise ValueError("a topic id requires 16 random bytes")
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    if raw[0] >> 2 == 62:  # its text would start with '-', which tools parse as an option
        raw[0] &= 0x7F
    return TopicId(bytes(raw))


def decide_create_topics(
    image: MetadataImage,
    settings: MetadataSettings,
    rules: ConfigRules,
    topics: Sequence[NewTopic],
    *,
    randomness: Sequence[bytes],
    start: int,
    validate_only: bool = False,
    quota: MutationQuota = UNLIMITED,
) -> Decision[Record, list[TopicCreated]]:
    """Create topics; each has its own error. `randomness` has 16 bytes per topic, `start` seeds the placement."""
    creation = _Creation(image, settings, rules, start, quota)
    names = Counter(topic.name for topic in topics)
    if sum(map(creation.partitions_wanted, topics)) > PARTITIONS_PER_REQUEST_MAX:
        error = PolicyViolation("Excessively large number of partitions per request.")
        return respond([_rejected(name, error) for name in names])
    outcomes = []
    for topic, random_bytes in zip(topics, randomness, strict=True):
        if names[topic.name] > 1:
            names[topic.name] = -1  # one result for all of them
            outcomes.append(_rejected(topic.name, InvalidRequest("Duplicate topic name.")))
        elif names[topic.name] == 1:
            outcomes.append(creation.attempt(topic, topic_id_from(random_bytes)))
    return respond(outcomes, () if validate_only else creation.records)


def _rejected(name: str, error: KafkaError) -> TopicCreated:
    return TopicCreated(name, error.code, error.message)


class _Creation:
    """The topics created by one request."""

    def __init__(
        self, image: MetadataImage, settings: MetadataSettings, rules: ConfigRules, start: int, quota: MutationQuota
    ) -> None:
        self.records: list[Record] = []
        self._image = image
        self._settings = settings
        self._rules = rules
        self._start = start
        self._quota = quota
        self._topic_ids: set[TopicId] = set()
        self._look_alikes: dict[str, str] | None = None

    def partitions_wanted(self, topic: NewTopic) -> int:
        """Return the partition count, at least one: an invalid topic counts towards the request limit too."""
        if topic.assignments:
            return len(topic.assignments)
        return self._settings.num_partitions if topic.partitions == UNSET else max(topic.partitions, 1)

    def attempt(self, topic: NewTopic, topic_id: TopicId) -> TopicCreated:
        try:
            return self._create(topic, topic_id)
        except KafkaError as error:
            return _rejected(topic.name, error)

    def _create(self, topic: NewTopic, topic_id: TopicId) -> TopicCreated:
        self._check_name(topic.name)
        self._check_id(topic_id)
        configs = _checked_configs(topic, self._rules)
        placements = self._place(topic)
        self._quota.record(len(placements))
        self._start += len(placements)
        self._register(topic.name, topic_id)
        self.records.append(messages.TopicRecord(name=topic.name, topic_id=topic_id))
        resource = Resource(ResourceType.TOPIC, topic.name)
        self.records.extend(config_record(resource, name, value) for name, value in configs.items())
        self.records.extend(
            partition_record(self._image, topic_id, index, placement) for index, placement in enumerate(placements)
        )
        return TopicCreated(
            topic.name,
            topic_id=topic_id,
            partitions=len(placements),
            replication_factor=len(placements[0].replicas),
            configs=configs,
        )

    def _check_name(self, name: str) -> None:
        if name in self._image.topics:
            raise TopicAlreadyExists(f"Topic '{name}' already exists.")
        check_topic_name(name)
        if can_collide(name):
            other = self._names_by_key().get(collision_key(name))
            if other is not None:
                raise InvalidTopic(f"Topic '{name}' collides with existing topic: {other}")

    def _names_by_key(self) -> dict[str, str]:
        if self._look_alikes is None:
            self._look_alikes = collision_keys(self._image.topics)
        return self._look_alikes

    def _check_id(self, topic_id: TopicId) -> None:
        if topic_id in self._image.topics_by_id or topic_id in self._topic_ids:
            raise UnknownServerFailure("The random topic id is already in use; retry.")

    def _register(self, name: str, topic_id: TopicId) -> None:
        self._topic_ids.add(topic_id)
        if can_collide(name):
            self._names_by_key()[collision_key(name)] = name

    def _place(self, topic: NewTopic) -> list[Placement]:
        if topic.assignments:
            return self._place_manually(topic)
        if topic.replication_factor < UNSET or topic.replication_factor == 0:
            raise InvalidReplicationFactor("Replication factor must be larger than 0, or -1 to use the default value.")
        if topic.partitions < UNSET or topic.partitions == 0:
            raise InvalidPartitions("Number of partitions was set to an invalid non-positive value.")
        replication_factor = topic.replication_factor
        if replication_factor == UNSET:
            replication_factor = self._settings.default_replication_factor
        return place_replicas(self._image, self.partitions_wanted(topic), replication_factor, self._start)

    def _place_manually(self, topic: NewTopic) -> list[Placement]:
        if topic.replication_factor != UNSET:
            raise InvalidRequest(
                "A manual partition assignment was specified, but replication factor was not set to -1."
            )
        if topic.partitions != UNSET:
            raise InvalidRequest("A manual partition assignment was specified, but numPartitions was not set to -1.")
        placements: dict[int, Placement] = {}
        replication_factor = None
        for partition, brokers in topic.assignments:
            if partition in placements:
                raise InvalidReplicaAssignment(f"Found multiple manual partition assignments for partition {partition}")
            check_assignment(self._image, brokers, replication_factor)
            replication_factor = len(brokers)
            placements[partition] = assigned(self._image, partition, brokers)
        if sorted(placements) != list(range(len(placements))):
            raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
        return [placements[partition] for partition in range(len(placements))]


def _checked_configs(topic: NewTopic, rules: ConfigRules) -> dict[str, str]:
    empty = [name for name, value in topic.configs if value is None]
    if empty:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(empty)}")
    configs = {name: value for name, value in topic.configs if value is not None}
    rules.check(Resource(ResourceType.TOPIC, topic.name), configs, configs.keys())
    return configs


def decide_delete_topics(
    image: MetadataImage,
    settings: MetadataSettings,
    topics: Sequence[TopicReference],
    *,
    quota: MutationQuota = UNLIMITED,
) -> Decision[Record, list[TopicDeleted]]:
    """Delete topics; each has its own error."""
    names = Counter(topic.name for topic in topics if topic.name is not None)
    topic_ids = Counter(topic.topic_id for topic in topics if topic.topic_id != NO_TOPIC_ID)
    if len(topics) > RESOURCES_PER_REQUEST_MAX:
        excess = PolicyViolation(f"At most {RESOURCES_PER_REQUEST_MAX} topics can be deleted per request.")
        return respond([TopicDeleted(each.name, each.topic_id, excess.code, excess.message) for each in topics])
    records: list[Record] = []
    outcomes: dict[TopicReference, TopicDeleted] = {}  # by reference: a duplicate gets one result
    for reference in topics:
        try:
            _check_reference(image, reference, names, topic_ids)
            deleted = _delete(image, settings, reference)
            quota.record(len(image.topics_by_id[deleted.topic_id].partitions))
            outcomes[reference] = deleted
            records.append(messages.RemoveTopicRecord(topic_id=deleted.topic_id))
        except KafkaError as error:
            outcomes[reference] = TopicDeleted(reference.name, reference.topic_id, error.code, error.message)
    return respond(list(outcomes.values()), records)


def _check_reference(
    image: MetadataImage, reference: TopicReference, names: Counter[str], topic_ids: Counter[TopicId]
) -> None:
    if reference.name is not None and reference.topic_id != NO_TOPIC_ID:
        raise InvalidRequest("You may not specify both topic name and topic id.")
    if reference.name is None and reference.topic_id == NO_TOPIC_ID:
        raise InvalidRequest("Neither topic name nor id were specified.")
    if reference.name is None:
        if topic_ids[reference.topic_id] > 1:
            raise InvalidRequest("Duplicate topic id.")
        return
    if names[reference.name] > 1:
        raise InvalidRequest("Duplicate topic name.")
    if image.topic_id(reference.name) in topic_ids:
        raise InvalidRequest("The provided topic name maps to an ID that was already supplied.")


def _delete(image: MetadataImage, settings: MetadataSettings, reference: TopicReference) -> TopicDeleted:
    by_id, by_name = image.topics_by_id, image.topics
    topic = by_id.get(reference.topic_id) if reference.name is None else by_name.get(reference.name)
    if not settings.delete_topic_enable:
        raise TopicDeletionDisabled("Topic deletion is disabled.")
    if topic is None:
        raise UnknownTopicId(UNKNOWN_TOPIC_ID) if reference.name is None else UnknownTopicOrPartition(UNKNOWN_TOPIC)
    return TopicDeleted(topic.name, topic.topic_id)
