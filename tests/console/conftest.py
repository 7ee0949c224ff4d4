"""A broker and a console for the whole session, and an HTTP client that behaves like the page."""

import itertools
from collections.abc import Iterator

import pytest

from moldau.testing import Broker
from moldau_dev.console import Browser, serve

numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def console_url(broker: Broker) -> Iterator[str]:
    with serve(broker.bootstrap_servers) as url:
        yield url


@pytest.fixture
def browser(console_url: str) -> Browser:
    return Browser(console_url).open()


@pytest.fixture
def topic(browser: Browser, request: pytest.FixtureRequest) -> str:
    """The name of a new topic with three partitions."""
    name = f"{request.node.name.split('[')[0].removeprefix('test_')[:80]}-{next(numbers)}"
    browser.post("/topics", {"name": name, "partitions": 3})
    return name
