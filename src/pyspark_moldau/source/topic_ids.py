"""Topic ids as text: the 22 characters that Kafka's tools print; empty for the zero id."""

import base64
from typing import Final

from moldau.model.ids import NO_TOPIC_ID, TopicId


def _encoded(topic_id: TopicId) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


_NONE: Final = _encoded(NO_TOPIC_ID)


def topic_id_text(topic_id: TopicId) -> str:
    return normalize_topic_id(_encoded(topic_id))


def normalize_topic_id(text: str) -> str:
    """Convert librdkafka's form (standard Base64) to Kafka's (URL-safe Base64)."""
    alike = text.rstrip("=").replace("+", "-").replace("/", "_")
    return "" if alike == _NONE else alike
