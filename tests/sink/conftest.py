"""One broker for all tests of the sink."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sink_drivers import PARTITIONS, Sink, kill_drivers

from moldau.testing import Broker
from pyspark_moldau.options.sink_options import SinkOptions, sink_stream_options
from pyspark_moldau.sink.transaction_commit import BatchCommitters

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    settings = {
        "auto.create.topics.enable": "false",
        "moldau.metrics.listener": "",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    }
    with Broker(settings=settings) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _no_driver_outlives_its_test() -> Iterator[None]:
    yield
    kill_drivers()


@pytest.fixture(autouse=True)
def _no_committer_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[BatchCommitters] = []
    initialise = BatchCommitters.__init__

    def remember(self: BatchCommitters, *given: Any) -> None:
        initialise(self, *given)
        made.append(self)

    monkeypatch.setattr(BatchCommitters, "__init__", remember)
    yield
    for each in made:
        each.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"out-{next(_numbers)}", PARTITIONS)


@pytest.fixture
def make_sink(broker: Broker, topic: str, tmp_path: Path) -> Callable[..., Sink]:
    def make(**named: Any) -> Sink:
        staging = tmp_path / "staging"
        return Sink(servers=broker.bootstrap_servers, topic=topic, writer=f"query-{topic}", staging=staging, **named)

    return make


@pytest.fixture(params=["raw", "librdkafka"])
def options(broker: Broker, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> SinkOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "stagingLocation": str(tmp_path)}
    return sink_stream_options({**given, "sender": request.param})
