"""Pytest fixtures of the package. Importing this module is cheap: broker code loads when a fixture is used.

`moldau_broker`    a broker for the test session
`moldau_topic`     the name of a new topic on it, for one test
`moldau_queue`     the name of a new topic on it that a share group of the same name reads as a queue
`moldau_settings`  broker settings; override it to change them
`moldau_security`  "ssl", "mtls", "scram" or "plain" for TLS and authentication; override it to have them
`moldau_cluster`   a cluster of three for the test session; nodes that a test kills or pauses are back for the next
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.broker import Broker
    from moldau.testing.cluster import Cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def moldau_settings() -> Mapping[str, object]:
    """The settings of `moldau_broker` by their Kafka names. Override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def moldau_security() -> str | None:
    """The security of `moldau_broker` and `moldau_cluster`. Override this fixture to change it."""
    return None


@pytest.fixture(scope="session")
def moldau_broker(moldau_settings: Mapping[str, object], moldau_security: str | None) -> "Iterator[Broker]":
    """A broker in its own process, for the whole test session."""
    from moldau.testing.broker import Broker

    with Broker(settings=moldau_settings, security=moldau_security) as broker:
        yield broker


@pytest.fixture
def moldau_topic(moldau_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a new topic with one partition, created for this test."""
    return moldau_broker.create_topic(_new_name(request))


@pytest.fixture
def moldau_queue(moldau_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a new queue: a topic with one partition, and a share group of the same name."""
    return moldau_broker.create_queue(_new_name(request))


def _new_name(request: pytest.FixtureRequest) -> str:
    prefix = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name).strip("-")[:150]
    return f"{prefix}-{next(_numbers)}"


@pytest.fixture(scope="session")
def moldau_session_cluster(moldau_settings: Mapping[str, object], moldau_security: str | None) -> "Iterator[Cluster]":
    """The processes behind `moldau_cluster`."""
    from moldau.testing.cluster import Cluster

    with Cluster(settings=moldau_settings, security=moldau_security) as cluster:
        yield cluster


@pytest.fixture
def moldau_cluster(moldau_session_cluster: "Cluster") -> "Iterator[Cluster]":
    """A cluster of three brokers, all running at the start of each test."""
    yield moldau_session_cluster
    moldau_session_cluster.heal()
