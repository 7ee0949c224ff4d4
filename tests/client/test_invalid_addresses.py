"""Invalid addresses on real sockets fail like any other unreachable address."""

import asyncio

import pytest

from moldau.client.async_client import AsyncClient
from moldau.client.errors import Unreachable
from moldau.model.ids import Address
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork

pytestmark = pytest.mark.proves("A4", part="topics and settings")


@pytest.mark.parametrize(
    "address", [Address("a..b", 9092), Address("x" * 64 + ".com", 9092), Address("127.0.0.1", 70_000)], ids=str
)
def test_invalid_address_is_reported_as_unreachable(address: Address) -> None:
    async def ask() -> None:
        async with AsyncClient(SocketNetwork(), SystemClock(), system_random(), [address]) as client:
            await client.describe_topics()

    with pytest.raises(Unreachable, match="not an address that can be connected to") as failed:
        asyncio.run(ask())
    assert str(address) in str(failed.value)
