"""Subscriptions in the metadata of classic members, readable for protocol type "consumer" only."""

from collections.abc import Iterable
from typing import Final

from moldau.wire.codec import data_decoder
from moldau.wire.primitives import DECODE_FAILURES, Malformed

CONSUMER: Final = "consumer"
_VERSION_BYTES: Final = 2


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of these subscriptions; None if one cannot be parsed."""
    read = data_decoder("ConsumerProtocolSubscription", 0)  # every later version starts like this one
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            message, _ = read(memoryview(subscription), _VERSION_BYTES)
        except (Malformed, *DECODE_FAILURES):
            return None
        topics.update(message.topics)
    return frozenset(topics)
