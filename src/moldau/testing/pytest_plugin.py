"""Pytest fixtures that come with the package. Importing this costs nothing: a broker is only loaded when asked for.

`moldau_broker`    a broker for the whole run
`moldau_topic`     a topic on it for one test alone, by name
`moldau_settings`  override it to choose the broker's settings
`moldau_cluster`   a cluster of three for the whole run; what a test kills or freezes is healed before the next
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
    """The settings of `moldau_broker`, by Kafka's names; override this fixture to give some."""
    return {}


@pytest.fixture(scope="session")
def moldau_broker(moldau_settings: Mapping[str, object]) -> "Iterator[Broker]":
    """A broker in its own process that lives as long as the test run."""
    from moldau.testing.broker import Broker

    with Broker(settings=moldau_settings) as broker:
        yield broker


@pytest.fixture
def moldau_topic(moldau_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a fresh topic with one partition, made for this test."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name).strip("-")[:150]
    return moldau_broker.create_topic(f"{words}-{next(_numbers)}")


@pytest.fixture(scope="session")
def moldau_cluster_of_the_run(moldau_settings: Mapping[str, object]) -> "Iterator[Cluster]":
    """The processes behind `moldau_cluster`."""
    from moldau.testing.cluster import Cluster

    with Cluster(settings=moldau_settings) as cluster:
        yield cluster


@pytest.fixture
def moldau_cluster(moldau_cluster_of_the_run: "Cluster") -> "Iterator[Cluster]":
    """Three brokers; each test finds them all running."""
    yield moldau_cluster_of_the_run
    moldau_cluster_of_the_run.heal()
