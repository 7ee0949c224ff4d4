"""One broker for all tests of the sink."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sink_lives import PARTITIONS, Sink, end_all

from moldau.testing import Broker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(settings={"auto.create.topics.enable": "false", "moldau.metrics.listener": ""}) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _no_life_outlives_its_test() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"out-{next(_numbers)}", PARTITIONS)


@pytest.fixture
def make_sink(broker: Broker, topic: str, tmp_path: Path) -> Callable[..., Sink]:
    def make(**named: int) -> Sink:
        staging = tmp_path / "staging"
        return Sink(servers=broker.bootstrap_servers, topic=topic, writer=f"query-{topic}", staging=staging, **named)

    return make
