"""A broker and a gateway for the whole session, and requests to it."""

import itertools
from collections.abc import Iterator

import pytest

from moldau.testing import Broker
from moldau_dev.console import serve
from moldau_dev.gateway import Gateway

numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def gateway(broker: Broker) -> Iterator[Gateway]:
    with serve(broker.bootstrap_servers) as url:
        yield Gateway(url)


@pytest.fixture
def topic(gateway: Gateway, request: pytest.FixtureRequest) -> str:
    """The name of a new topic with three partitions."""
    name = f"{request.node.name.split('[')[0].removeprefix('test_')[:80]}-{next(numbers)}"
    assert gateway.post("/topics", {"name": name, "partitions": 3}).status == 201
    return name
