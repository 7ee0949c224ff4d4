"""One broker and one registry for all tests of the folder; each test uses subjects of its own."""

from collections.abc import Iterator

import pytest
from served_registry import RegistryClient, served_registry

from moldau.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def registry(broker: Broker) -> Iterator[RegistryClient]:
    with served_registry(broker.bootstrap_servers) as (client, _):
        yield client
