"""Mutated TLS handshakes: none opens a connection, each ends, and memory stays bounded."""

import asyncio
import contextlib
import os
import random
import resource
import ssl
import sys

from moldau.cli.certificates import Authority
from moldau.model.ids import Address
from moldau.model.ports import Connection
from moldau.model.tls import CertificateStore, ClientAuth, TlsSettings
from moldau.model.units import MiB
from moldau.node.ports.sockets import SocketNetwork

HANDSHAKES = int(os.environ.get("TLS_HANDSHAKES", "300"))  # `make fuzz-security` sets more
CONCURRENT = 20
HANDSHAKE_S_MAX = 30.0  # on a busy machine
FRAME_BYTES_MAX = MiB
GROWTH_BYTES_MAX = 64 * MiB
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024

CA = Authority.create()


def identity(pem: str) -> CertificateStore:
    key, begin, certificates = pem.partition("-----BEGIN CERTIFICATE-----")
    return CertificateStore(key=key, certificates=begin + certificates)


SERVER = TlsSettings(
    keystore=identity(CA.issue("node", ["127.0.0.1"])),
    truststore=CertificateStore(certificates=CA.pem),
    client_auth=ClientAuth.REQUIRED,
)


class Served:
    """Counts connections that passed the handshake, and frames."""

    def __init__(self) -> None:
        self.connections = self.frames = 0
        self.has_connected = asyncio.Event()

    def connected(self, connection: Connection) -> None:  # noqa: ARG002
        self.connections += 1
        self.has_connected.set()

    def frame_received(self, frame: memoryview) -> None:  # noqa: ARG002
        self.frames += 1

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


def mutated(rng: random.Random, sent: bytes) -> bytes:
    """Flip, cut, repeat, insert or replace bytes, or change the type or length of the first record."""
    changed = bytearray(sent or b"\0")
    place = rng.randrange(len(changed))
    match rng.randrange(7):
        case 0:
            for _ in range(rng.choice((1, 2, 20))):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case 1:
            del changed[place:]
        case 2:
            changed += changed[place:] * rng.choice((1, 3, 50))
        case 3:
            changed[place:place] = rng.randbytes(rng.choice((1, 5, 20_000)))
        case 4:
            changed[place:] = rng.randbytes(len(changed) - place)
        case 5:
            changed[0] = rng.randrange(256)
        case _:
            changed[3:5] = rng.choice((b"\0\0", b"\xff\xff", b"\x40\x01", rng.randbytes(2)))
    return bytes(changed)


async def handshake(rng: random.Random, address: Address) -> None:
    """A client without a certificate, which sends mutated bytes in one step of its handshake."""
    context = ssl.create_default_context(cadata=CA.pem)
    if rng.random() < 0.5:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    reader, writer = await asyncio.open_connection(*address)
    mutated_step = rng.randrange(3)
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        for step in range(3):
            try:
                client.do_handshake()
                client.write(b"\0\0\0\4ping")  # as if the handshake had succeeded
            except ssl.SSLWantReadError:
                pass
            sent = outgoing.read()
            writer.write(mutated(rng, sent) if step == mutated_step else sent)
            if step == mutated_step:
                writer.write_eof()
                break
            incoming.write(await reader.read(FRAME_BYTES_MAX))
        await reader.read()
    writer.close()


async def test_mutated_handshake_opens_no_connection_and_ends_in_bounded_memory() -> None:
    rng, served, failures = random.Random(1), Served(), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    listener = await SocketNetwork().listen(Address("127.0.0.1", 0), lambda: served, FRAME_BYTES_MAX, lambda: SERVER)
    await handshake(rng, listener.address)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(0, HANDSHAKES, CONCURRENT):
        async with asyncio.timeout(HANDSHAKE_S_MAX):
            await asyncio.gather(*(handshake(rng, listener.address) for _ in range(CONCURRENT)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * MAXRSS_BYTES
    assert (served.connections, served.frames) == (0, 0)
    trusted = TlsSettings(keystore=identity(CA.issue("alice")), truststore=SERVER.truststore)
    connection = await SocketNetwork().connect(listener.address, Served(), FRAME_BYTES_MAX, trusted)
    async with asyncio.timeout(HANDSHAKE_S_MAX):
        await served.has_connected.wait()  # the listener still works, and the test would notice a connection
    connection.abort()
    await listener.close()
    assert grown < GROWTH_BYTES_MAX
    assert not failures
