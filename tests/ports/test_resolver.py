"""Host names with several addresses, such as `localhost`, some of which are not local."""

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from moldau.cli.errors import as_command_error
from moldau.model.ids import Address
from moldau.model.ports import Connection, PageRequest
from moldau.node.ports.sockets import SocketNetwork

NAME = "several.test"
FRAME_MAX = 1024
NOT_OURS = "192.0.2.1"  # for documentation: not a local address

Stands = Callable[..., None]


class IgnoringEndpoint:
    """An endpoint that ignores everything."""

    def connected(self, connection: Connection) -> None: ...
    def frame_received(self, frame: memoryview) -> None: ...
    def drained(self) -> None: ...
    def disconnected(self, reason: str) -> None: ...


@pytest.fixture
def stands_for(monkeypatch: pytest.MonkeyPatch) -> Stands:
    """Make a host name resolve to these addresses."""
    resolve = socket.getaddrinfo

    def stand(*hosts: str) -> None:
        def resolve_name(host: Any, *arguments: Any, **named: Any) -> list[Any]:
            names = hosts if host == NAME else [host]
            return [each for name in names for each in resolve(name, *arguments, **named)]

        monkeypatch.setattr(socket, "getaddrinfo", resolve_name)

    return stand


@pytest.mark.proves("A1", part="every Python from 3.11 on")
async def test_listen_skips_addresses_this_machine_lacks(stands_for: Stands) -> None:
    stands_for(NOT_OURS, "127.0.0.1")
    listener = await SocketNetwork().listen(Address(NAME, 0), IgnoringEndpoint, FRAME_MAX)
    connection = await SocketNetwork().connect(listener.address, IgnoringEndpoint(), FRAME_MAX)
    assert listener.address.host == "127.0.0.1"
    connection.abort()
    await listener.close()


async def test_pages_are_served_when_an_address_is_not_local(stands_for: Stands) -> None:
    async def page(request: PageRequest) -> tuple[int, str, bytes]:
        return 200, "text/plain", request.path.encode()

    stands_for(NOT_OURS, "127.0.0.1")
    listener = await SocketNetwork().serve_pages(Address(NAME, 0), page)
    assert listener.address.host == "127.0.0.1"
    await listener.close()


async def test_address_of_another_machine_is_rejected() -> None:
    with pytest.raises(OSError, match=r"192.0.2.1:9092 is not an address of this machine") as raised:
        await SocketNetwork().listen(Address(NOT_OURS, 9092), IgnoringEndpoint, FRAME_MAX)
    assert "advertised.listeners" in str(as_command_error(raised.value))


async def test_unknown_host_name_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(socket.gaierror) as raised:
        await SocketNetwork().listen(Address(NAME, 9092), IgnoringEndpoint, FRAME_MAX)
    assert str(as_command_error(raised.value)) == f"cannot listen on {NAME}:9092: name or service not known"


@pytest.mark.proves("H3", part="failed brokers are detected")
@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]], ids=["one address", "two"])
async def test_connection_refused_at_every_address_is_connection_refused(stands_for: Stands, hosts: list[str]) -> None:
    stands_for(*hosts)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError) as raised:
        await SocketNetwork().connect(Address(NAME, port), IgnoringEndpoint(), FRAME_MAX)
    assert raised.value.errno == errno.ECONNREFUSED
