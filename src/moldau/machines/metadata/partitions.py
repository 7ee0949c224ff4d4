"""CreatePartitions: increase the number of partitions of topics."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.machines.metadata.mutation_quota import UNLIMITED, MutationQuota
from moldau.machines.metadata.placement import (
    Placement,
    assigned,
    check_assignment,
    partition_record,
    place_replicas,
)
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import PARTITIONS_PER_REQUEST_MAX
from moldau.machines.metadata.topics import UNKNOWN_TOPIC
from moldau.model.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    UnknownTopicOrPartition,
)


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """The requested total `count` of partitions; assignments, if given, are for the new ones in order."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class PartitionsCreated:
    """The result for a topic."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decide_create_partitions(
    image: MetadataImage,
    topics: Sequence[MorePartitions],
    *,
    start: int,
    validate_only: bool = False,
    quota: MutationQuota = UNLIMITED,
) -> Decision[Record, list[PartitionsCreated]]:
    """Add partitions; each topic has its own error. `start` seeds the placement."""
    names = Counter(topic.name for topic in topics)
    records: list[Record] = []
    outcomes: dict[str, PartitionsCreated] = {}  # by name: a duplicate gets one result
    for wanted in topics:
        try:
            if names[wanted.name] > 1:
                raise InvalidRequest("Duplicate topic name.")
            added = _grow(image, wanted, start + len(records), PARTITIONS_PER_REQUEST_MAX - len(records))
            quota.record(len(added))
            records.extend(added)
            outcomes[wanted.name] = PartitionsCreated(wanted.name)
        except KafkaError as error:
            outcomes[wanted.name] = PartitionsCreated(wanted.name, error.code, error.message)
    return respond(list(outcomes.values()), () if validate_only else records)


def _grow(image: MetadataImage, wanted: MorePartitions, start: int, additional_max: int) -> list[Record]:
    topic = image.topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartition(UNKNOWN_TOPIC)
    present = len(topic.partitions)
    _check_count(wanted, present, additional_max)
    return [
        partition_record(image, topic.topic_id, present + index, placement)
        for index, placement in enumerate(_placements(image, topic, wanted, start))
    ]


def _check_count(wanted: MorePartitions, present: int, additional_max: int) -> None:
    if wanted.count == present:
        raise InvalidPartitions(f"Topic already has {present} partition(s).")
    if wanted.count < present:
        raise InvalidPartitions(
            f"The topic {wanted.name} currently has {present} partition(s); {wanted.count} would not be an increase."
        )
    additional = wanted.count - present
    if additional > additional_max:
        raise PolicyViolation("Excessively large number of partitions per request.")
    if wanted.assignments is not None and len(wanted.assignments) != additional:
        raise InvalidReplicaAssignment(
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified."
        )


def _placements(image: MetadataImage, topic: TopicImage, wanted: MorePartitions, start: int) -> list[Placement]:
    present = len(topic.partitions)
    first = topic.partitions[0]
    # A partition being reassigned has more replicas than its target.
    replication_factor = len([each for each in first.replicas if each not in first.removing_replicas])
    if wanted.assignments is None:
        return place_replicas(image, wanted.count - present, replication_factor, start)
    placements = []
    for index, brokers in enumerate(wanted.assignments):
        check_assignment(image, brokers, replication_factor)
        placements.append(assigned(image, present + index, brokers))
    return placements
