"""The topic of a Produce request: its name, and whether the client may write to it.

The handler and the fast path of Produce call the same function, so both accept and reject the same topics.
"""

from typing import Protocol

from moldau.broker.access import Operation
from moldau.broker.internal_topics import INTERNAL
from moldau.broker.requests.context import ContextHost, RequestContext
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import InvalidTopic, KafkaError, TopicAuthorizationFailed, UnknownTopicId
from moldau.model.ids import TopicId
from moldau.model.protocol import PRODUCE_TOPIC_IDS_FROM
from moldau.wire.messages import ProduceRequest


class ProduceTopicHost(ContextHost, Protocol):
    """The parts of the broker that the rules need."""

    @property
    def image(self) -> MetadataImage: ...


def find_topic(
    topic: ProduceRequest.TopicProduceData, context: RequestContext[ProduceTopicHost], *, is_audited: bool = True
) -> tuple[str, KafkaError | None]:
    """Return the name of a `TopicProduceData`, and the error if the client must not write to it.

    `is_audited` is False for a request that was recorded in the audit log already.
    """
    name: str = topic.name
    if context.api_version < PRODUCE_TOPIC_IDS_FROM and context.broker.allows_all and name not in INTERNAL:
        return name, None
    if context.api_version >= PRODUCE_TOPIC_IDS_FROM:
        image = context.broker.image.topics_by_id.get(TopicId(topic.topic_id))
        if image is None:
            return "", UnknownTopicId("Unknown topic id.")
        name = image.name
    if not context.may(Operation.WRITE, name, is_audited=is_audited):
        return name, TopicAuthorizationFailed(f"Not authorized to write to topic {name}.")
    if name in INTERNAL:
        return name, InvalidTopic(f"Clients cannot write to the internal topic {name}.")
    return name, None
