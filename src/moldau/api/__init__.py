"""The small Python API: `moldau.connect(...)`. It uses confluent-kafka and works with any Kafka cluster."""

from moldau.api.connection import Connection, connect
from moldau.api.consumer import Consumption
from moldau.api.types import Failed, Message, Place

__all__ = ["Connection", "Consumption", "Failed", "Message", "Place", "connect"]
