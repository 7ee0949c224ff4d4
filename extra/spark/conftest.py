"""For the tests beside Spark's own connector: one session for all of them, with both connectors in it."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connector import has_spark, jars

from moldau.testing.broker import Broker
from moldau_dev.spark import SETTINGS

# `make test-connector` fetches the jars; the others need PySpark only.
_without_spark = [] if has_spark else ["test_standalone_*.py", "test_secured_*.py"]
collect_ignore_glob = _without_spark + ([] if jars() else ["test_connector_*.py"])

TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark_moldau import session

    settings = {**SETTINGS, **({"spark.jars": ",".join(map(str, jars()))} if jars() else {})}
    made = session("moldau-connector-tests", master="local[2]", settings=settings)
    yield made
    made.stop()


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    """A fresh topic with two partitions."""
    return moldau_broker.create_topic(f"both-{uuid.uuid4().hex}", partitions=2)
