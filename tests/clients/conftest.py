"""One broker for all client tests, and each client library in turn."""

import itertools
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_driver import KafkaClient
from client_driver_aiokafka import AioKafka
from client_driver_confluent import ConfluentKafka
from client_driver_kafka_python import KafkaPython, inet

from moldau.testing import Broker

_numbers = itertools.count(1)


class QuietSocket(socket.socket):
    """Closes silently when it is garbage-collected."""

    def __del__(self) -> None:
        self.close()


@pytest.fixture(scope="session", autouse=True)
def _sockets_of_kafka_python() -> Iterator[None]:
    """kafka-python leaks the socket of a client that is closed with unsent data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inet.KafkaNetSocket, "socket", lambda _self, *kind: QuietSocket(*kind))
        yield


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker without topic auto-creation that accepts records slightly above 1 MiB."""
    settings = {"auto.create.topics.enable": "false", "moldau.metrics.listener": ""}
    with Broker(settings=settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def confluent(broker: Broker) -> Iterator[ConfluentKafka]:
    client = ConfluentKafka(broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture(scope="session")
def kafka_python(broker: Broker) -> Iterator[KafkaPython]:
    client = KafkaPython(broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture(scope="session")
def aiokafka(broker: Broker) -> Iterator[AioKafka]:
    client = AioKafka(broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture(params=["confluent", "kafka_python", "aiokafka"])
def client(request: pytest.FixtureRequest) -> KafkaClient:
    """Each library in turn."""
    client: KafkaClient = request.getfixturevalue(request.param)
    return client


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A unique topic name."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name).strip("-")[:120]
    return f"{words}-{next(_numbers)}"


@pytest.fixture
def topic(topic_name: str, client: KafkaClient) -> str:
    """A topic with one partition, created by the client under test."""
    client.create_topic(topic_name)
    return topic_name


@pytest.fixture
def segment(broker: Broker, topic_name: str) -> Path:
    """The first segment file of the test's topic."""
    return broker.data / f"{topic_name}-0" / f"{0:020d}.log"
