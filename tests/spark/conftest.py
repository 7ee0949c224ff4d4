"""One Spark session for all tests, with two cores and little memory."""

import importlib.util
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moldau.testing.broker import Broker

# Without the extra moldau[spark] there is nothing to collect here; `make setup` installs it.
collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]

# A session starts in seconds on an idle machine, and in a minute on a busy one.
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from quick_settings import SETTINGS

    from pyspark_moldau import session

    made = session("moldau-tests", master="local[2]", settings=SETTINGS)
    yield made
    made.stop()


@pytest.fixture
def topic(moldau_broker: "Broker") -> str:
    """A fresh topic with two partitions."""
    return moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=2)
