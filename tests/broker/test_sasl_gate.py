"""The gate of a SASL listener: what is served before authentication, and how authentication fails."""

import asyncio
import struct
from typing import Any

import pytest
from broker_scene import Scene, batch, on_broker, produce_request
from raw_peers import raw_peer
from sasl_scene import (
    SASL_LISTENER,
    WITH_ALL,
    WITH_PLAIN,
    authenticate,
    create_user,
    handshake,
    is_served,
    log_in,
    log_in_with_scram,
    peer_after,
)

from moldau.machines.access.plain import INVALID, OTHER_IDENTITY, plain_message
from moldau.model.errors import ErrorCode, InvalidConfig
from moldau.node.configuration import load_configuration
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

pytestmark = pytest.mark.proves("O4", part="SASL")

VERSIONS = (3, ApiVersionsRequest(client_software_name="peer", client_software_version="1"))
HELLO = (1, SaslHandshakeRequest(mechanism="PLAIN"))
LOGIN = (2, SaslAuthenticateRequest(auth_bytes=plain_message("alice", "pw-a")))
SOON_S = 5.0
METADATA = (12, MetadataRequest(topics=[]))


def test_authenticated_connection_is_served_as_its_user() -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        assert await is_served(talker)
        (connection,) = scene.node._listeners.limits._connections
        assert connection.principal == "User:alice"
        assert scene.node.broker.authentication_meter.successes == 1

    on_broker(script, settings=WITH_PLAIN)


def test_client_of_a_later_release_retries_with_an_older_version_of_api_versions() -> None:
    async def script(scene: Scene) -> None:
        unknown = struct.pack(">hhih", 18, 99, 7, -1)
        peer = await raw_peer(scene)
        peer.connection.send([struct.pack(">i", len(unknown)) + unknown])
        await asyncio.sleep(1)
        for version, request in (VERSIONS, HELLO):
            header = RequestHeader(request.API_KEY, version, 1, "peer")
            peer.connection.send(frame_request(header, request))
            await asyncio.sleep(1)
        assert not peer.is_lost.is_set()
        assert len(peer.frames) == 3
        assert peer.frames[0][4:6] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)

    on_broker(script, settings=WITH_PLAIN)


@pytest.mark.parametrize(
    "requests",
    [
        [METADATA],
        [VERSIONS, METADATA],
        [VERSIONS, VERSIONS],
        [HELLO, METADATA],
        [VERSIONS, HELLO, METADATA],
        [HELLO, VERSIONS],
        [HELLO, HELLO],
        [LOGIN],
        [HELLO, (2, SaslAuthenticateRequest(auth_bytes=plain_message("alice", "no"))), METADATA],
        [HELLO, (2, SaslAuthenticateRequest(auth_bytes=plain_message("alice", "no"))), HELLO, LOGIN, METADATA],
        [(9, produce_request("t", batch(b"a")))],
    ],
    ids=str,
)
def test_unauthenticated_request_closes_the_connection(requests: list[tuple[int, Any]]) -> None:
    async def script(scene: Scene) -> None:
        started_s = asyncio.get_running_loop().time()
        peer = await peer_after(scene, *requests)
        await peer.is_lost.wait()
        assert asyncio.get_running_loop().time() - started_s < SOON_S  # not when the time to authenticate is over
        assert not any(len(frame) > 2000 for frame in peer.frames)
        assert "t" not in scene.node.broker.image.topics
        assert scene.node.broker.authentication_meter.successes == 0

    on_broker(script, settings=WITH_PLAIN)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (plain_message("alice", "wrong"), INVALID),
        (plain_message("unknown", "pw-a"), INVALID),
        (plain_message("bob", "pw-a"), INVALID),
        (b"bob\0alice\0pw-a", OTHER_IDENTITY),
        (plain_message("", "pw-a"), "Authentication failed: username not specified"),
        (plain_message("alice", ""), "Authentication failed: password not specified"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
    ],
)
def test_response_to_a_failed_plain_authentication_is_delayed(message: bytes, text: str) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await handshake(talker)
        before_ms = scene.node.broker.clock.monotonic_ms()
        failed = await authenticate(talker, message)
        assert scene.node.broker.clock.monotonic_ms() - before_ms >= 250
        assert (failed.error_code, failed.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        await talker.is_lost.wait()
        assert scene.node.broker.authentication_meter.failures == 1

    on_broker(script, settings=[*WITH_PLAIN, "connection.failed.authentication.delay.ms=250"])


def test_mechanism_that_is_not_offered_is_rejected_with_those_that_are() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        response = await handshake(talker, "GSSAPI")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        await talker.is_lost.wait()

    on_broker(script, settings=WITH_ALL)


def test_raw_messages_follow_the_handshake_of_version_0() -> None:
    async def script(scene: Scene) -> None:
        peer = await peer_after(scene, (0, SaslHandshakeRequest(mechanism="PLAIN")))
        token = plain_message("alice", "pw-a")
        peer.connection.send([struct.pack(">i", len(token)) + token])
        while len(peer.frames) < 2:
            await asyncio.sleep(0.01)
        assert peer.frames[1] == b""
        (connection,) = scene.node._listeners.limits._connections
        assert connection.principal == "User:alice"

    on_broker(script, settings=WITH_PLAIN)


def test_failed_raw_exchange_closes_without_a_response() -> None:
    async def script(scene: Scene) -> None:
        peer = await peer_after(scene, (0, SaslHandshakeRequest(mechanism="PLAIN")))
        peer.connection.send([struct.pack(">i", 1) + b"x"])
        await peer.is_lost.wait()
        assert len(peer.frames) == 1

    on_broker(script, settings=WITH_PLAIN)


def test_large_frame_is_rejected_before_authentication_and_allowed_after() -> None:
    async def script(scene: Scene) -> None:
        peer = await raw_peer(scene)
        peer.connection.send([struct.pack(">i", 1001)])
        async with asyncio.timeout(SOON_S):
            await peer.is_lost.wait()
        talker = await log_in(scene)
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        assert (await talker.ask(7, CreateTopicsRequest(topics=[topic]))).topics[0].error_code == 0
        response = await talker.ask(9, produce_request("t", batch(b"x" * 5000)))
        assert response.responses[0].partition_responses[0].error_code == 0

    on_broker(script, settings=[*WITH_PLAIN, "sasl.server.max.receive.size=1000"])


def test_connection_that_does_not_authenticate_in_time_is_closed() -> None:
    async def script(scene: Scene) -> None:
        silent, half, trickling = [await scene.connect() for _ in range(3)]
        served = await log_in(scene)
        await handshake(half)
        await trickling.ask(*VERSIONS)
        for each in (silent, half, trickling):
            await each.is_lost.wait()
        assert await is_served(served)

    on_broker(script, settings=[*WITH_PLAIN, "moldau.authentication.timeout.ms=3000", "connections.max.idle.ms=-1"])


def test_oldest_unauthenticated_connection_makes_room_for_a_new_one() -> None:
    async def script(scene: Scene) -> None:
        served = await log_in(scene)
        silent = [await raw_peer(scene) for _ in range(3)]
        await silent[0].is_lost.wait()
        talker = await log_in(scene)  # displaces the next
        await silent[1].is_lost.wait()
        assert not silent[2].is_lost.is_set()
        assert await is_served(served)
        assert await is_served(talker)

    on_broker(script, settings=[*WITH_PLAIN, "moldau.max.unauthenticated.connections=2"])


def test_scram_user_authenticates_and_a_wrong_password_fails_like_an_unknown_user() -> None:
    async def script(scene: Scene) -> None:
        admin = await log_in(scene)
        await create_user(admin, "carol", "pw-c")
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            talker, last = await log_in_with_scram(scene, mechanism, "carol", "pw-c")
            assert last.error_code == 0
            assert await is_served(talker)
            failures = [
                (await log_in_with_scram(scene, mechanism, name, "wrong"))[1] for name in ("carol", "unknown", "alice")
            ]
            cause = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            assert {(each.error_code, each.error_message) for each in failures} == {(58, f"{cause} {mechanism}")}

    on_broker(script, settings=WITH_ALL)


def test_plain_users_change_while_the_broker_runs() -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        change = IncrementalAlterConfigsRequest.AlterableConfig(
            name="listener.name.sasl_plaintext.plain.sasl.jaas.config",
            config_operation=0,
            value='PlainLoginModule required user_carol="pw-c";',
        )
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="1", configs=[change]
        )
        response = await talker.ask(1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == 0, response
        assert await is_served(await log_in(scene, "carol", "pw-c"))
        former = await scene.connect()
        await handshake(former)
        assert (await authenticate(former, plain_message("alice", "pw-a"))).error_message == INVALID

    on_broker(script, settings=WITH_PLAIN)


def test_sasl_requests_of_a_plaintext_connection_are_errors() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert (await handshake(talker)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await authenticate(talker, b"")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await is_served(talker)

    on_broker(script)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SASL_LISTENER, "mechanism GSSAPI, which is not supported"),
        ((*SASL_LISTENER, "sasl.enabled.mechanisms=PLAIN"), "listener.name.sasl_plaintext.plain.sasl.jaas.config"),
        ((*SASL_LISTENER, "sasl.enabled.mechanisms="), "sasl.enabled.mechanisms is empty"),
        ((*WITH_PLAIN, "listener.name.sasl_plaintext.plain.sasl.jaas.config=x"), "A JAAS configuration must be"),
        ((*WITH_PLAIN, "sasl.server.callback.handler.class=my.Own"), "other classes cannot be loaded"),
    ],
)
def test_configuration_without_usable_mechanism_is_rejected(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        load_configuration(overrides=settings)
