"""Create topics on a Metadata request (`auto.create.topics.enable`)."""

from collections.abc import Sequence
from typing import Final

from moldau.broker.controllers.topic_creation import request_topics
from moldau.broker.groups.offsets_topic import new_offsets_topic
from moldau.broker.handlers.contexts import ClusterContext, ClusterHost
from moldau.broker.internal_topics import OFFSETS_TOPIC, STATE_TOPIC
from moldau.broker.transactions.state_topic import new_state_topic
from moldau.machines.metadata.topics import NewTopic
from moldau.model.errors import (
    ErrorCode,
    InvalidTopic,
    KafkaError,
    LeaderNotAvailable,
    NotController,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from moldau.model.protocol import METADATA_TOPIC

TOPICS_PER_REQUEST_MAX: Final = 1000
_NEW_INTERNAL_TOPICS: Final = {OFFSETS_TOPIC: new_offsets_topic, STATE_TOPIC: new_state_topic}


async def auto_create(broker: ClusterHost, names: Sequence[str], context: ClusterContext) -> dict[str, KafkaError]:
    """Create the named topics; return the error of each topic that could not be created."""
    rejected = await _attempt(broker, names, context)
    for name, error in rejected.items():
        if not isinstance(error, LeaderNotAvailable):  # Metadata responses carry no message, so log it
            context.log_rejection("a new topic", name, error.message)
    return rejected


async def _attempt(broker: ClusterHost, names: Sequence[str], context: ClusterContext) -> dict[str, KafkaError]:
    wanted = [
        _NEW_INTERNAL_TOPICS[name](broker) if name in _NEW_INTERNAL_TOPICS else NewTopic(name)
        for name in dict.fromkeys(names[:TOPICS_PER_REQUEST_MAX])
        if name != METADATA_TOPIC
    ]
    try:
        created = await request_topics(broker, wanted, context)
    except (NotController, RequestTimedOut) as error:  # the client retries
        return {each.name: LeaderNotAvailable(error.message) for each in wanted}
    except KafkaError as error:  # concerns these topics only, not the others of the request
        return {each.name: error for each in wanted}
    rejected: dict[str, KafkaError] = {}
    for outcome in created:
        if outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION:
            rejected[outcome.name] = InvalidTopic(outcome.message or "")
        elif outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS:
            rejected[outcome.name] = LeaderNotAvailable(f"Topic {outcome.name} is being created.")
        elif outcome.error is not ErrorCode.NONE:
            rejected[outcome.name] = UnknownTopicOrPartition(outcome.message or "")
    return rejected
