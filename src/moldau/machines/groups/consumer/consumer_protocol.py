"""The embedded consumer protocol of classic members: versioned subscriptions and assignments."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from moldau.machines.groups.consumer.partitions import CurrentAssignment
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import TopicId
from moldau.wire import messages
from moldau.wire.codec import data_decoder
from moldau.wire.data_records import PREFIX_BYTES, encode_versioned
from moldau.wire.primitives import DECODE_FAILURES, Malformed

OLDEST: Final = 0
NEWEST: Final = 3  # a later version starts like this one

_Topic: Final = messages.ConsumerProtocolAssignment.TopicPartition


def read_subscription(metadata: bytes) -> messages.ConsumerProtocolSubscription:
    """Parse a subscription; raises `Malformed`."""
    read: messages.ConsumerProtocolSubscription = _read("ConsumerProtocolSubscription", metadata)
    return read


def read_assignment(assignment: bytes) -> messages.ConsumerProtocolAssignment:
    """Parse an assignment; raises `Malformed`."""
    read: messages.ConsumerProtocolAssignment = _read("ConsumerProtocolAssignment", assignment)
    return read


def write_assignment(assignment: CurrentAssignment, image: MetadataImage, metadata: bytes) -> bytes:
    """Encode an assignment in the version of the consumer's subscription, or the oldest."""
    named = sorted((image.topic_name(topic_id) or "", sorted(assignment[topic_id])) for topic_id in assignment)
    topics = [_Topic(topic=name, partitions=indexes) for name, indexes in named if name]
    try:
        version = _version(metadata)
    except Malformed:  # only the subscription of the chosen assignor has been validated
        version = OLDEST
    return encode_versioned(messages.ConsumerProtocolAssignment(assigned_partitions=topics), version)


def by_id(topics: Iterable[Any], image: MetadataImage) -> Mapping[TopicId, frozenset[int]]:
    """Map partitions of named topics to topic ids; unknown topics are skipped."""
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
