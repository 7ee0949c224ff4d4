"""TLS connections: frames over TLS, handshakes that fail, stall or send garbage, certificates that change."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from test_sockets import FRAME_MAX, LOOPBACK, Recorder, framed

from moldau.cli.certificates import Authority
from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.model.ports import FileSlice, Piece
from moldau.model.tls import CertificateStore, ClientAuth, TlsSettings
from moldau.model.units import KiB, MiB
from moldau.node.ports import tls_handshakes
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.sockets import SocketNetwork

pytestmark = pytest.mark.proves("O4", part="TLS")

CA = Authority.create()
OTHER_CA = Authority.create("Other CA")
TRUST = CertificateStore(certificates=CA.pem)


def identity(pem: str) -> CertificateStore:
    key, begin, certificates = pem.partition("-----BEGIN CERTIFICATE-----")
    return CertificateStore(key=key, certificates=begin + certificates)


NODE = identity(CA.issue("node-1", ["localhost", "127.0.0.1"]))
ALICE = identity(CA.issue("alice"))
SERVER = TlsSettings(keystore=NODE, truststore=TRUST)
MUTUAL = replace(SERVER, client_auth=ClientAuth.REQUIRED)
CLIENT = TlsSettings(truststore=TRUST)


@asynccontextmanager
async def served(recorder: Recorder, tls: TlsSettings = SERVER) -> AsyncIterator[Address]:
    listener = await SocketNetwork().listen(LOOPBACK, lambda: recorder, FRAME_MAX, lambda: tls)
    try:
        yield listener.address
    finally:
        await listener.close()
        if hasattr(recorder, "connection"):
            recorder.connection.abort()
            await recorder.has_ended.wait()


async def connect(address: Address, tls: TlsSettings = CLIENT) -> Recorder:
    client = Recorder()
    await SocketNetwork().connect(address, client, FRAME_MAX, tls)
    return client


async def close(*recorders: Recorder) -> None:
    for recorder in recorders:
        recorder.connection.abort()
        await recorder.has_ended.wait()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_frames_of_all_sizes_arrive_whole_and_in_order(version: str) -> None:
    contents = [os.urandom(size) for size in (0, 1, 100, 16 * KiB - 4, 16 * KiB, 64 * KiB, MiB, 5 * MiB, 3)]
    server = Recorder(lambda frame: [framed(frame)])
    async with served(server, replace(SERVER, versions=(version,))) as address:
        client = await connect(address)
        client.connection.send([framed(content) for content in contents])
        await client.until(len(contents))
        assert server.frames == contents
        assert client.frames == contents
        await close(client)


async def test_file_slices_are_sent_between_buffers_in_order(tmp_path: Path) -> None:
    content = os.urandom(3 * MiB)
    (tmp_path / "log").write_bytes(content)
    file = SystemDisk().open(str(tmp_path / "log"))
    pieces: Sequence[Piece] = [
        len(content).to_bytes(4, "big") + content[:10],
        FileSlice(file, 10, 2 * MiB),
        memoryview(content)[10 + 2 * MiB : 11 + 2 * MiB],
        FileSlice(file, 11 + 2 * MiB, MiB - 11),
    ]
    server = Recorder(lambda _: pieces)
    async with served(server) as address:
        client = await connect(address)
        client.connection.send([framed(b"fetch")])
        await client.until(1)
        assert client.frames == [content]
        assert server.connection.queued_bytes == 0
        await close(client)
    file.close()


async def test_paused_connection_delivers_received_frames_when_resumed() -> None:
    """The frames are decrypted in part already: the socket alone would never report them."""
    server = Recorder()
    async with served(server) as address:
        client = await connect(address)
        client.connection.send([framed(b"first")])
        await server.until(1)
        server.connection.pause_reading()
        client.connection.send([framed(bytes(KiB))] * 40)
        await asyncio.sleep(0)
        assert len(server.frames) == 1
        server.connection.resume_reading()
        await server.until(41)
        await close(client)


async def test_slow_reader_gets_everything_and_drains_the_queue() -> None:
    content = os.urandom(8 * MiB - KiB)
    server = Recorder(lambda _: [framed(content)] * 3)
    async with served(server) as address:
        client = await connect(address)
        client.connection.send([framed(b"go")])
        await server.until(1)
        client.connection.pause_reading()
        assert server.connection.queued_bytes > 0
        client.connection.resume_reading()
        await client.until(3)
        async with asyncio.timeout(10):
            await server.has_drained.wait()
        assert client.frames == [content] * 3
        assert server.connection.queued_bytes == 0
        await close(client)


async def test_close_sends_queued_frames_and_a_close_alert() -> None:
    server = Recorder()
    async with served(server) as address:
        reader, writer = await asyncio.open_connection(*address, ssl=client_context(), server_hostname="localhost")
        writer.write(framed(b"hello"))
        await server.until(1)
        server.connection.send([framed(bytes(MiB))])
        server.connection.close()
        assert len(await reader.read(-1)) == MiB + 4  # read() would raise without the alert
        writer.close()
        await server.has_ended.wait()
        assert server.reason == ""


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=CA.pem)


async def test_end_of_stream_without_close_alert_is_an_ordinary_close() -> None:
    server = Recorder()
    async with served(server) as address:
        client = await connect(address)
        client.connection.send([framed(b"last")])
        await server.until(1)
        client.connection.abort()
        await server.has_ended.wait()
        assert server.frames == [b"last"]
        assert server.reason == ""
        await client.has_ended.wait()


async def test_corrupt_record_ends_the_connection_with_a_reason() -> None:
    server = Recorder()
    async with served(server) as address:
        client = await connect(address)
        await server_connected(server)
        client.connection._socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))  # type: ignore[attr-defined]
        await server.has_ended.wait()
        assert server.reason == "TLS failed: decryption failed or bad record mac"
        await client.has_ended.wait()
        assert client.reason is not None
        assert "bad record mac" in client.reason


async def server_connected(server: Recorder) -> None:
    async with asyncio.timeout(10):
        while not hasattr(server, "connection"):
            await asyncio.sleep(0.001)


# Identities


async def test_verified_client_certificate_names_the_peer() -> None:
    server = Recorder()
    async with served(server, MUTUAL) as address:
        client = await connect(address, replace(CLIENT, keystore=ALICE))
        await server_connected(server)
        assert server.connection.peer_subject == "CN=alice"
        assert client.connection.peer_subject == "CN=node-1"
        await close(client)


async def test_client_without_certificate_has_no_subject_where_it_is_requested() -> None:
    server = Recorder()
    async with served(server, replace(MUTUAL, client_auth=ClientAuth.REQUESTED)) as address:
        client = await connect(address)
        await server_connected(server)
        assert server.connection.peer_subject is None
        await close(client)


async def test_unrequested_client_certificate_is_ignored() -> None:
    server = Recorder()
    async with served(server) as address:
        client = await connect(address, replace(CLIENT, keystore=ALICE))
        await server_connected(server)
        assert server.connection.peer_subject is None
        await close(client)


async def test_missing_client_certificate_is_rejected_with_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    server = Recorder()
    async with served(server, MUTUAL) as address:
        client = await connect(address)  # TLS 1.3: complete for the client before the server has looked
        await client.has_ended.wait()
        assert client.reason is not None
        assert "requires a client certificate" in client.reason
        assert not hasattr(server, "connection")
        await until_logged(caplog, "the client sent no certificate (ssl.client.auth=required)")


@pytest.mark.parametrize(
    ("store", "cause"),
    [
        (identity(OTHER_CA.issue("mallory")), "certificate rejected: self-signed certificate in certificate chain"),
        (identity(CA.issue("alice", days=-1)), "certificate rejected: certificate has expired"),
        (identity(CA.issue("alice", starts_in_days=2)), "certificate rejected: certificate is not yet valid"),
    ],
    ids=["unknown authority", "expired", "not yet valid"],
)
async def test_invalid_client_certificate_is_rejected(
    store: CertificateStore, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Recorder()
    async with served(server, MUTUAL) as address:
        client = await connect(address, replace(CLIENT, keystore=store))
        await client.has_ended.wait()
        await until_logged(caplog, cause)
        assert not hasattr(server, "connection")


@pytest.mark.parametrize(
    ("server", "cause"),
    [
        (identity(OTHER_CA.issue("node-1", ["127.0.0.1"])), "self-signed certificate in certificate chain"),
        (identity(CA.issue("node-1", ["127.0.0.1"], days=-1)), "certificate has expired"),
        (identity(CA.issue("node-1", ["example.org"])), "IP address mismatch, certificate is not valid for"),
    ],
    ids=["unknown authority", "expired", "other host"],
)
async def test_client_rejects_an_invalid_server(server: CertificateStore, cause: str) -> None:
    recorder = Recorder()
    async with served(recorder, replace(SERVER, keystore=server)) as address:
        with pytest.raises(OSError, match=cause):
            await connect(address)


async def test_client_accepts_another_host_name_without_identification() -> None:
    recorder = Recorder()
    tls = replace(SERVER, keystore=identity(CA.issue("node-1", ["example.org"])))
    async with served(recorder, tls) as address:
        client = await connect(address, replace(CLIENT, verifies_hostname=False))
        await close(client)
        await server_connected(recorder)


async def test_versions_without_overlap_are_rejected_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    async with served(recorder, replace(SERVER, versions=("TLSv1.3",))) as address:
        with pytest.raises(OSError, match="no TLS version in common"):
            await connect(address, replace(CLIENT, versions=("TLSv1.2",)))
        await until_logged(caplog, "no TLS version in common")


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(10):
        while text not in caplog.text:
            await asyncio.sleep(0.001)


# Hostile and mistaken peers


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        (b"\0\0\0\x14\0\x12\0\0", "a Kafka request in plain text: set its security.protocol to SSL or SASL_SSL"),
        (b"GET / HTTP/1.1\r\n\r\n", "the peer speaks HTTP, not TLS"),
        (b"\xff" * 100, "are not TLS"),
    ],
)
async def test_plain_text_client_is_rejected_with_the_cause(
    first: bytes, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(Recorder()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(first)
        assert await reader.read(-1) == b""
        writer.close()
        await until_logged(caplog, cause)


async def test_tls_client_of_a_plain_listener_gets_a_hint() -> None:
    server = Recorder()
    listener = await SocketNetwork().listen(LOOPBACK, lambda: server, FRAME_MAX)
    with pytest.raises(OSError, match="is its listener plain text"):
        await connect(listener.address)
    await server.has_ended.wait()
    assert "look like TLS" in (server.reason or "")
    await listener.close()


async def test_garbage_in_the_handshake_does_not_disturb_others() -> None:
    server = Recorder(lambda frame: [framed(frame)])
    async with served(server) as address:
        client = await connect(address)
        for length in range(1, 400, 7):
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"\x16\x03\x01" + os.urandom(length))
            writer.close()
        client.connection.send([framed(b"still here")])
        await client.until(1)
        await close(client)


async def test_silent_handshake_ends_at_the_deadline(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_S_MAX", 0.1)
    async with served(Recorder()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"\x16\x03\x01\x02")  # never the rest
        assert await reader.read(-1) == b""
        writer.close()
        await until_logged(caplog, "not complete within 0.1 s")


async def test_oldest_handshake_ends_where_too_many_are_pending(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "HANDSHAKES_MAX", 3)
    server = Recorder()
    async with served(server) as address:
        silent = [await asyncio.open_connection(*address) for _ in range(4)]
        assert await silent[0][0].read(-1) == b""
        client = await connect(address)
        await close(client)
        for _, writer in silent:
            writer.close()
        await until_logged(caplog, "more than 3 handshakes are pending")
        await server.has_ended.wait()


async def test_failures_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    async with served(Recorder()) as address:
        for _ in range(30):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read(-1)
            writer.close()
    assert 5 <= caplog.text.count("TLS handshake with") <= 12


async def test_large_frame_does_not_wait_for_a_low_water_mark() -> None:
    """The kernel would count encrypted bytes, of which some have been received already."""
    server = Recorder()
    async with served(server) as address:
        client = await connect(address)
        content = framed(os.urandom(300 * KiB))
        for start in range(0, len(content), 10_000):
            client.connection.send([content[start : start + 10_000]])
            await asyncio.sleep(0)
        await server.until(1)
        lowat = server.connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)  # type: ignore[attr-defined]
        assert lowat == 1
        await close(client)


# Certificates in files


def settings_in(directory: Path, name: str = "node-1") -> TlsSettings:
    write_identity(directory, name)
    (directory / "ca.pem").write_text(CA.pem)
    return TlsSettings(
        keystore=CertificateStore(location=str(directory / "node.pem")),
        truststore=CertificateStore(location=str(directory / "ca.pem")),
    )


def write_identity(directory: Path, name: str) -> None:
    (directory / "node.pem").write_text(CA.issue(name, ["127.0.0.1"]))


async def subject_seen_at(address: Address, server: Recorder) -> str | None:
    client = await connect(address)
    subject = client.connection.peer_subject
    await server_connected(server)
    await close(client)
    return subject


async def test_new_connections_get_a_replaced_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.node.ports.tls_context.CHECK_S", 0.0)
    server = Recorder()
    async with served(server, settings_in(tmp_path)) as address:
        assert await subject_seen_at(address, server) == "CN=node-1"
        write_identity(tmp_path, "renewed")
        assert await subject_seen_at(address, server) == "CN=renewed"


async def test_unusable_new_certificate_leaves_the_old_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("moldau.node.ports.tls_context.CHECK_S", 0.0)
    server = Recorder()
    async with served(server, settings_in(tmp_path)) as address:
        assert await subject_seen_at(address, server) == "CN=node-1"
        (tmp_path / "node.pem").write_text("half a file")
        assert await subject_seen_at(address, server) == "CN=node-1"
        assert "so the previous certificates stay in use" in caplog.text
        write_identity(tmp_path, "renewed")
        assert await subject_seen_at(address, server) == "CN=renewed"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xfe\xed\xfe\xed" + bytes(20), "keytool -importkeystore .* -deststoretype PKCS12"),
        (CA.pem.encode(), "contains no private key"),
        (b"nonsense", "cannot be opened as PKCS12"),
        (None, "cannot be read: No such file"),
    ],
)
async def test_listener_with_unusable_keystore_does_not_start(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    if content is not None:
        path.write_bytes(content)
    tls = TlsSettings(keystore=CertificateStore(type="JKS", location=str(path)))
    with pytest.raises(InvalidConfig, match=problem):
        await SocketNetwork().listen(LOOPBACK, Recorder, FRAME_MAX, lambda: tls)
