"""The metrics page over TLS: its certificates, client certificates, and peers that do not speak TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from test_tls_connection import CA, MUTUAL, NODE, OTHER_CA, SERVER, identity

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.model.ports import Page, PageRequest
from moldau.model.tls import CertificateStore, TlsSettings
from moldau.node.ports.pages import CONNECTIONS_MAX
from moldau.node.ports.sockets import SocketNetwork

pytestmark = pytest.mark.proves("O4", part="TLS")

REQUEST = b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer abc\r\n\r\n"


async def page(request: PageRequest) -> Page:
    await asyncio.sleep(0)
    return 200, "text/plain", f"{request.path} {request.authorization} {request.peer}".encode()


@asynccontextmanager
async def served(tls: TlsSettings) -> AsyncIterator[Address]:
    listener = await SocketNetwork().serve_pages(Address("127.0.0.1", 0), page, lambda: tls)
    yield listener.address
    await listener.close()


def context(tmp_path: Path, authority: str = CA.pem, pem: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cadata=authority)
    if pem:
        (tmp_path / "client.pem").write_text(pem)
        made.load_cert_chain(tmp_path / "client.pem")
    return made


async def fetch(address: Address, by: ssl.SSLContext | None, request: bytes = REQUEST) -> bytes:
    reader, writer = await asyncio.open_connection(*address, ssl=by)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_page_is_served_over_tls(tmp_path: Path) -> None:
    async with served(SERVER) as address:
        response = await fetch(address, context(tmp_path))
        assert response.startswith(b"HTTP/1.1 200")
        assert response.endswith(b"/metrics Bearer abc 127.0.0.1")
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch(address, context(tmp_path, OTHER_CA.pem))
        assert (await fetch(address, context(tmp_path))).startswith(b"HTTP/1.1 200")


async def test_client_certificate_is_required_where_the_settings_say_so(tmp_path: Path) -> None:
    async with served(MUTUAL) as address:
        response = await fetch(address, context(tmp_path, pem=CA.issue("prometheus")))
        assert response.startswith(b"HTTP/1.1 200")
        with suppress(ssl.SSLError, ConnectionError):  # the alert may come after the client's last bytes
            assert not await fetch(address, context(tmp_path))


@pytest.mark.parametrize("sent", [REQUEST, b"\x16\x03\x01\xff\xff" + bytes(2000), b"", b"\x00" * 70_000])
async def test_peer_without_tls_gets_no_page(sent: bytes, tmp_path: Path) -> None:
    async with served(SERVER) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        writer.write_eof()
        with suppress(ConnectionError):
            assert b"metrics" not in await reader.read()
        writer.close()
        assert (await fetch(address, context(tmp_path))).startswith(b"HTTP/1.1 200")


async def test_silent_peers_do_not_keep_others_from_the_page(tmp_path: Path) -> None:
    async with served(SERVER) as address:
        silent = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS_MAX + 3)]
        assert (await fetch(address, context(tmp_path))).startswith(b"HTTP/1.1 200")
        for _, writer in silent:
            writer.close()


async def test_new_certificate_serves_new_connections(tmp_path: Path) -> None:
    settings = [SERVER]
    listener = await SocketNetwork().serve_pages(Address("127.0.0.1", 0), page, lambda: settings[-1])
    assert await fetch(listener.address, context(tmp_path))
    renewed = identity(OTHER_CA.issue("node-1", ["127.0.0.1"]))
    settings.append(replace(SERVER, keystore=renewed))
    assert await fetch(listener.address, context(tmp_path, OTHER_CA.pem))
    await listener.close()


async def test_invalid_certificate_is_an_error_at_the_start() -> None:
    with pytest.raises(InvalidConfig):
        async with served(TlsSettings(keystore=replace(NODE, certificates="none"), truststore=CertificateStore())):
            pass
