"""What classic consumers tell each other through the coordinator: subscriptions and assignments, a version in front."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from moldau.machines.groups.consumer.partitions import Holding
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import TopicId
from moldau.wire import messages
from moldau.wire.codec import data_decoder
from moldau.wire.data_records import PREFIX_BYTES, encode_versioned
from moldau.wire.primitives import DECODE_FAILURES, Malformed

OLDEST: Final = 0
NEWEST: Final = 3  # a later version begins like this one

_Topic: Final = messages.ConsumerProtocolAssignment.TopicPartition


def read_subscription(metadata: bytes) -> messages.ConsumerProtocolSubscription:
    """What a consumer reads and has; `Malformed` if it is no subscription."""
    read: messages.ConsumerProtocolSubscription = _read("ConsumerProtocolSubscription", metadata)
    return read


def read_assignment(assignment: bytes) -> messages.ConsumerProtocolAssignment:
    """What a leader assigned to a consumer; `Malformed` if it is no assignment."""
    read: messages.ConsumerProtocolAssignment = _read("ConsumerProtocolAssignment", assignment)
    return read


def write_assignment(holding: Holding, image: MetadataImage, metadata: bytes) -> bytes:
    """An assignment for the consumer whose subscription this is, in the version it speaks, or in the oldest."""
    named = sorted((image.topic_name(topic_id) or "", sorted(holding[topic_id])) for topic_id in holding)
    topics = [_Topic(topic=name, partitions=indexes) for name, indexes in named if name]
    try:
        version = _version(metadata)
    except Malformed:  # only the subscription to the assignor that was chosen has been read
        version = OLDEST
    return encode_versioned(messages.ConsumerProtocolAssignment(assigned_partitions=topics), version)


def by_id(topics: Iterable[Any], image: MetadataImage) -> Mapping[TopicId, frozenset[int]]:
    """Partitions of named topics; those of topics that do not exist are left out."""
    found: dict[TopicId, frozenset[int]] = {}
    for each in topics:
        topic = image.topics.get(each.topic)
        if topic is not None and each.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(each.partitions)
    return found


def _version(body: bytes) -> int:
    if len(body) < PREFIX_BYTES:
        raise Malformed("shorter than its version")
    version = int.from_bytes(body[:PREFIX_BYTES], "big", signed=True)
    if version < 0:
        raise Malformed(f"no version {version}")
    return min(version, NEWEST)


def _read(name: str, body: bytes) -> Any:
    try:
        return data_decoder(name, _version(body))(memoryview(body), PREFIX_BYTES)[0]
    except DECODE_FAILURES as error:
        raise Malformed(f"{name}: {error}") from error
