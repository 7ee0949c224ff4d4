"""What classic members say they read. Their metadata is their own business, except where it is a consumer's."""

from collections.abc import Iterable
from typing import Final

from moldau.wire.codec import data_decoder
from moldau.wire.primitives import DECODE_FAILURES, Malformed

CONSUMER: Final = "consumer"
_VERSION_BYTES: Final = 2


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics in consumers' subscriptions; None where one of them cannot be read."""
    read = data_decoder("ConsumerProtocolSubscription", 0)  # every later version begins like this one
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            message, _ = read(memoryview(subscription), _VERSION_BYTES)
        except (Malformed, *DECODE_FAILURES):
            return None
        topics.update(message.topics)
    return frozenset(topics)
