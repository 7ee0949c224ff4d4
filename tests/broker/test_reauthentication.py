"""Sessions with a lifetime, and re-authentication on the same connection (KIP-368)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, fetch_request, on_broker, produce_request
from sasl_scene import WITH_ALL, WITH_PLAIN, authenticate, create_user, handshake, is_served, log_in

from moldau.client.link import Link
from moldau.client.sasl import PlainLogin, ScramLogin
from moldau.client.security import ClientSecurity
from moldau.client.settings import ClientSettings
from moldau.machines.access.plain import plain_message
from moldau.model.errors import ErrorCode
from moldau.model.ids import Address
from moldau.model.listeners import SecurityProtocol
from moldau.wire.messages import CreateTopicsRequest, MetadataRequest, SaslHandshakeRequest

pytestmark = pytest.mark.proves("O4", part="SASL")

LIFETIME_MS = 10_000
WITH_LIFETIME = (*WITH_PLAIN, f"connections.max.reauth.ms={LIFETIME_MS}")
BROKER = Address("broker", 9092)


async def log_in_again(talker: Talker, name: str = "alice", password: str = "pw-a") -> Any:
    assert (await handshake(talker)).error_code == 0
    return await authenticate(talker, plain_message(name, password))


async def topic(talker: Talker) -> None:
    wanted = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    assert (await talker.ask(7, CreateTopicsRequest(topics=[wanted]))).topics[0].error_code == 0


def test_response_states_the_lifetime_of_the_session() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await handshake(talker)
        response = await authenticate(talker, plain_message("alice", "pw-a"))
        assert response.session_lifetime_ms == LIFETIME_MS

    on_broker(script, settings=WITH_LIFETIME)


@pytest.mark.parametrize("requests", [0, 3])
def test_expired_session_is_closed_at_its_next_request(requests: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        await topic(talker)
        for _ in range(requests):  # the fast path has cached it
            assert (await talker.ask(9, produce_request("t", batch(b"a")))).responses[0].partition_responses
        await asyncio.sleep(LIFETIME_MS / 1000 + 1)
        assert not talker.is_lost.is_set()
        with pytest.raises(ConnectionResetError):
            await talker.ask(9, produce_request("t", batch(b"a")))
        assert scene.node.broker.partitions.get("t", 0).log.end_offset == requests
        assert scene.node.broker.authentication_meter.expired == 1

    on_broker(script, settings=WITH_LIFETIME)


@pytest.mark.parametrize("wait_s", [5, LIFETIME_MS / 1000 + 1])
def test_session_is_renewed_before_or_after_it_expires(wait_s: float) -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        await topic(talker)
        for _ in range(3):
            for _ in range(2):
                response = await talker.ask(9, produce_request("t", batch(b"a")))
                assert response.responses[0].partition_responses[0].error_code == 0
            await asyncio.sleep(wait_s)
            assert (await log_in_again(talker)).error_code == 0
        assert await is_served(talker)
        assert scene.node.broker.authentication_meter.reauthentications == 3

    on_broker(script, settings=WITH_LIFETIME)


def test_waiting_fetch_gets_its_response_during_a_reauthentication() -> None:
    async def script(scene: Scene) -> None:
        talker, other = await log_in(scene), await log_in(scene)
        await topic(talker)
        fetched = talker.begin(11, fetch_request("t", 0, max_wait_ms=60_000))
        hello = talker.begin(1, SaslHandshakeRequest(mechanism="PLAIN"))
        await other.ask(9, produce_request("t", batch(b"a")))
        assert (await fetched).responses[0].partitions[0].error_code == 0
        assert (await hello).error_code == 0
        assert (await authenticate(talker, plain_message("alice", "pw-a"))).error_code == 0
        assert await is_served(talker)

    on_broker(script, settings=WITH_LIFETIME)


@pytest.mark.parametrize(
    ("name", "password", "text"),
    [
        ("bob", "pw-b", "Cannot change principals during re-authentication from User.alice: User.bob"),
        ("alice", "wrong", "Authentication failed: Invalid username or password"),
    ],
)
def test_reauthentication_as_another_user_or_with_a_wrong_password_closes(name: str, password: str, text: str) -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        response = await log_in_again(talker, name, password)
        assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        await talker.is_lost.wait()

    on_broker(script, settings=WITH_LIFETIME)


def test_reauthentication_with_another_mechanism_is_rejected() -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        response = await handshake(talker, "SCRAM-SHA-256")
        assert (response.error_code, response.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
        await talker.is_lost.wait()

    on_broker(script, settings=[*WITH_ALL, f"connections.max.reauth.ms={LIFETIME_MS}"])


def test_request_in_the_middle_of_a_reauthentication_closes() -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        assert (await handshake(talker)).error_code == 0
        assert not await is_served(talker)

    on_broker(script, settings=WITH_LIFETIME)


@pytest.mark.parametrize("settings", [WITH_PLAIN, WITH_LIFETIME])
def test_reauthentication_needs_a_lifetime_and_a_second_between(settings: Sequence[str]) -> None:
    async def script(scene: Scene) -> None:
        talker = await log_in(scene)
        if settings is WITH_LIFETIME:
            assert (await log_in_again(talker)).error_code == 0
        assert (await handshake(talker)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await is_served(talker)

    on_broker(script, settings=settings)


def link(scene: Scene, login: PlainLogin | ScramLogin) -> Link:
    security = ClientSecurity(protocol=SecurityProtocol.SASL_PLAINTEXT, sasl=login)
    return Link(BROKER, scene.node.broker.clock, ClientSettings(security=security))


def test_our_client_renews_its_sessions() -> None:
    async def script(scene: Scene) -> None:
        await create_user(await log_in(scene), "carol", "pw-c")
        logins: list[PlainLogin | ScramLogin] = [PlainLogin("alice", "pw-a")]
        logins += [ScramLogin(name, "carol", "pw-c", bytes) for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
        for login in logins:
            client = link(scene, login)
            await client.open(scene.simulation.network.host("client"), until_authenticated=True)
            for _ in range(40):
                response = await client.send(MetadataRequest(topics=[]))
                assert response.brokers
                await asyncio.sleep(1)
            assert not client.is_closed
            await client.close()
        meter = scene.node.broker.authentication_meter
        assert meter.reauthentications >= 4 * len(logins)
        assert meter.failures == meter.expired == 0

    on_broker(script, settings=[*WITH_ALL, f"connections.max.reauth.ms={LIFETIME_MS}"])


@pytest.mark.parametrize(
    "login",
    [PlainLogin("alice", "wrong"), ScramLogin("SCRAM-SHA-256", "alice", "pw-a", bytes)],
    ids=lambda login: login.mechanism,
)
def test_our_client_reports_a_rejected_login(login: PlainLogin | ScramLogin) -> None:
    async def script(scene: Scene) -> None:
        client = link(scene, login)
        with pytest.raises(ConnectionError, match="rejected the authentication: Authentication failed"):
            await client.open(scene.simulation.network.host("client"), until_authenticated=True)

    on_broker(script, settings=WITH_ALL)
