"""What the broker knows of topics beyond their image: which are its own, and how one is made by asking for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from moldau.broker.context import OwnContext, RequestContext
from moldau.broker.groups.offsets_topic import OFFSETS_TOPIC, new_offsets_topic
from moldau.broker.transactions.state_topic import STATE_TOPIC, new_state_topic
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.errors import (
    ErrorCode,
    InvalidTopic,
    KafkaError,
    LeaderNotAvailable,
    NotController,
    PolicyViolation,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from moldau.model.units import SECOND_MS
from moldau.wire.framing import RequestHeader
from moldau.wire.messages import CreateTopicsRequest

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

INTERNAL: Final = frozenset({OFFSETS_TOPIC, STATE_TOPIC, "__share_group_state"})
METADATA_TOPIC: Final = "__cluster_metadata"
_AS_SETTINGS_SAY: Final = {OFFSETS_TOPIC: new_offsets_topic, STATE_TOPIC: new_state_topic}
TOPIC_ID_BYTES: Final = 16
AUTO_CREATED_AT_ONCE_MAX: Final = 1000
PLACEMENT_STARTS: Final = 1 << 16
CREATE_TOPICS: Final = (19, 7)  # the API and the version in which brokers use it among themselves
SEEN_MS_MAX: Final = 5 * SECOND_MS  # from its creation until a topic is known here


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


async def request_topics(
    broker: "Broker", wanted: Sequence[NewTopic], context: RequestContext | None = None
) -> list[TopicCreated]:
    """Have topics created by the active controller, for a client or for this broker itself, and wait to see them."""
    if broker.controller.is_here:
        return await create_topics(broker, wanted)
    asker = context or OwnContext(broker, RequestHeader(*CREATE_TOPICS, 0))
    request = CreateTopicsRequest(topics=[_asked(topic) for topic in wanted], timeout_ms=SEEN_MS_MAX)
    answer = await broker.controller.forward(request, asker, version=CREATE_TOPICS[1])
    created = [TopicCreated(each.name, ErrorCode(each.error_code), each.error_message) for each in answer.topics]
    await _seen(broker, [each.name for each in created if each.error is ErrorCode.NONE])
    return created


def _asked(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
    )


async def _seen(broker: "Broker", names: Sequence[str]) -> None:
    if not await broker.publishing.until(lambda image: all(name in image.topics for name in names), SEEN_MS_MAX):
        raise RequestTimedOut("The topics are created, but not known here yet.")


def check_room(broker: "Broker", more_partitions: int) -> None:
    """Each partition is an open file, and there must be some left for connections."""
    if len(broker.partitions) + more_partitions > broker.partitions_max:
        raise PolicyViolation(
            f"This broker holds {len(broker.partitions)} partitions, and at most {broker.partitions_max} with the files"
            " that it may open (ulimit -n)."
        )


async def auto_create(broker: "Broker", names: Sequence[str], context: RequestContext) -> dict[str, KafkaError]:
    """Create topics that a client asked about; the errors of those that could not be."""
    refused = await _attempt(broker, names, context)
    for name, error in refused.items():
        if not isinstance(error, LeaderNotAvailable):  # metadata has no place for words: the log is where they are read
            context.note_refusal("a new topic", name, error.message)
    return refused


async def _attempt(broker: "Broker", names: Sequence[str], context: RequestContext) -> dict[str, KafkaError]:
    wanted = [
        _AS_SETTINGS_SAY[name](broker) if name in _AS_SETTINGS_SAY else NewTopic(name)
        for name in dict.fromkeys(names[:AUTO_CREATED_AT_ONCE_MAX])
        if name != METADATA_TOPIC
    ]
    try:
        created = await request_topics(broker, wanted, context)
    except (NotController, RequestTimedOut) as error:  # the client asks again
        return {each.name: LeaderNotAvailable(error.message) for each in wanted}
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
