"""What the broker knows of topics beyond their image: which are its own, and how one is made by asking for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from moldau.broker.groups.offsets_topic import OFFSETS_TOPIC, new_offsets_topic
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.errors import (
    ErrorCode,
    InvalidTopic,
    KafkaError,
    LeaderNotAvailable,
    PolicyViolation,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

INTERNAL: Final = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})
METADATA_TOPIC: Final = "__cluster_metadata"
TOPIC_ID_BYTES: Final = 16
AUTO_CREATED_AT_ONCE_MAX: Final = 1000
PLACEMENT_STARTS: Final = 1 << 16


def is_internal(topic: str) -> bool:
    return topic in INTERNAL


async def create_topics(
    broker: "Broker", wanted: Sequence[NewTopic], *, validate_only: bool = False
) -> list[TopicCreated]:
    """Decided by the metadata machine; when this returns, this broker's partitions of the topics are open."""
    check_room(broker, sum(len(each.assignments) or max(each.partitions, 1) for each in wanted))
    randomness = [broker.random.randbytes(TOPIC_ID_BYTES) for _ in wanted]
    start = broker.random.randrange(0, PLACEMENT_STARTS)
    created = await broker.metadata.write(
        lambda machine: machine.decide_create_topics(
            wanted, randomness=randomness, start=start, validate_only=validate_only
        )
    )
    if not validate_only:
        await broker.caught_up()
    return created


def check_room(broker: "Broker", more_partitions: int) -> None:
    """Each partition is an open file, and there must be some left for connections."""
    if len(broker.partitions) + more_partitions > broker.partitions_max:
        raise PolicyViolation(
            f"This broker holds {len(broker.partitions)} partitions, and at most {broker.partitions_max} with the files"
            " that it may open (ulimit -n)."
        )


async def auto_create(broker: "Broker", names: Sequence[str]) -> dict[str, KafkaError]:
    """Create topics that a client asked about; the errors of those that could not be."""
    wanted = [
        new_offsets_topic(broker) if name == OFFSETS_TOPIC else NewTopic(name)
        for name in dict.fromkeys(names[:AUTO_CREATED_AT_ONCE_MAX])
        if name != METADATA_TOPIC
    ]
    try:
        created = await create_topics(broker, wanted)
    except KafkaError as error:  # concerns these topics alone, not the others that were asked about
        return {each.name: error for each in wanted}
    refused: dict[str, KafkaError] = {}
    for outcome in created:
        if outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION:
            refused[outcome.name] = InvalidTopic(outcome.message or "")
        elif outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS:
            refused[outcome.name] = LeaderNotAvailable(f"Topic {outcome.name} is being created.")
        elif outcome.error is not ErrorCode.NONE:
            refused[outcome.name] = UnknownTopicOrPartition(outcome.message or "")
    return refused
