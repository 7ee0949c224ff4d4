"""The small Python API: `moldau.connect(...)`. It uses confluent-kafka and works with any Kafka cluster."""

from moldau.api.connection import Connection, connect
from moldau.api.consumer import Consumption
from moldau.api.jobs import Job
from moldau.api.queue import Queue
from moldau.api.types import Failed, Message, Place
from moldau.api.workers import Progress

__all__ = ["Connection", "Consumption", "Failed", "Job", "Message", "Place", "Progress", "Queue", "connect"]
