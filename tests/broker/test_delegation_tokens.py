"""Delegation tokens: create, renew, expire, describe, and authenticate by them."""

import asyncio
from base64 import b64encode
from typing import Any

import pytest
from broker_scene import Scene, ScriptedAuthorizer, Talker, on_broker
from sasl_scene import WITH_ALL, is_served, log_in, log_in_with_scram

from moldau.broker.access import Client, Operation, Resource, ResourceKind
from moldau.model.error_codes import ErrorCode
from moldau.wire.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

pytestmark = pytest.mark.proves("O4", part="delegation tokens")

HOUR_MS = 3_600_000
WITH_TOKENS = (*WITH_ALL, "delegation.token.secret.key=the key", f"delegation.token.expiry.time.ms={HOUR_MS}")


async def create(talker: Talker, renewers: tuple[str, ...] = (), lifetime_ms: int = -1, owner: str = "") -> Any:
    named = [CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name=n) for n in renewers]
    request = CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name=owner, renewers=named, max_lifetime_ms=lifetime_ms
    )
    return await talker.ask(3, request)


async def renew(talker: Talker, hmac: bytes, period_ms: int = -1) -> Any:
    return await talker.ask(2, RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms))


async def expire(talker: Talker, hmac: bytes, period_ms: int = -1) -> Any:
    return await talker.ask(2, ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms))


async def describe(talker: Talker, *owners: str) -> list[tuple[str, str]]:
    """Return owner and id of each token."""
    kind = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = [kind(principal_type="User", principal_name=name) for name in owners]
    response = await talker.ask(3, DescribeDelegationTokenRequest(owners=named or None))
    assert response.error_code == 0
    return [(each.principal_name, each.token_id) for each in response.tokens]


def password(token: Any) -> str:
    return b64encode(token.hmac).decode()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_token_authenticates_as_its_owner_and_manages_no_tokens(mechanism: str) -> None:
    async def script(scene: Scene) -> None:
        alice = await log_in(scene)
        token = await create(alice, lifetime_ms=10 * HOUR_MS)
        assert (token.error_code, token.principal_name, len(token.hmac)) == (0, "alice", 64)
        assert token.max_timestamp_ms - token.issue_timestamp_ms == 10 * HOUR_MS
        assert token.expiry_timestamp_ms - token.issue_timestamp_ms == HOUR_MS
        talker, last = await log_in_with_scram(scene, mechanism, token.token_id, password(token), is_by_token=True)
        assert last.error_code == 0
        assert HOUR_MS - 60_000 < last.session_lifetime_ms <= HOUR_MS
        assert await is_served(talker)
        principals = {each.principal for each in scene.node._listeners.limits._connections}
        assert principals == {"User:alice"}
        assert (await create(talker)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert (await renew(talker, token.hmac)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    on_broker(script, settings=WITH_TOKENS)


def test_expired_removed_and_invented_tokens_do_not_authenticate() -> None:
    async def script(scene: Scene) -> None:
        alice = await log_in(scene)
        short, removed = await create(alice, lifetime_ms=5000), await create(alice)
        assert (await expire(alice, removed.hmac)).error_code == 0
        await asyncio.sleep(6)
        logins = [
            (short.token_id, password(short)),
            (removed.token_id, password(removed)),
            ("invented", password(short)),
            (short.token_id, "guess"),
        ]
        for token_id, secret in logins:
            _, last = await log_in_with_scram(scene, "SCRAM-SHA-256", token_id, secret, is_by_token=True)
            assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    on_broker(script, settings=WITH_TOKENS)


def test_owner_and_renewers_renew_up_to_the_longest_lifetime() -> None:
    async def script(scene: Scene) -> None:
        alice, bob = await log_in(scene), await log_in(scene, "bob", "pw-b")
        own = await create(alice)
        shared = await create(alice, renewers=("bob",), lifetime_ms=HOUR_MS + 10_000)
        await asyncio.sleep(60)
        assert (await renew(bob, own.hmac)).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        renewed = await renew(bob, shared.hmac)
        assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, shared.max_timestamp_ms)
        assert (await renew(alice, own.hmac, 1000)).expiry_timestamp_ms < own.expiry_timestamp_ms
        await asyncio.sleep(2)
        assert (await renew(alice, own.hmac)).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
        assert (await expire(alice, b"no token")).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND

    on_broker(script, settings=WITH_TOKENS)


def test_expired_tokens_are_removed_by_the_controller_and_others_survive_a_restart() -> None:
    async def script(scene: Scene) -> None:
        alice = await log_in(scene)
        await create(alice, lifetime_ms=5000)
        kept = await create(alice)
        await asyncio.sleep(30)
        assert await describe(alice) == [("alice", kept.token_id)]
        await scene.restart_after_crash()
        assert await describe(await log_in(scene)) == [("alice", kept.token_id)]

    on_broker(script, settings=[*WITH_TOKENS, "delegation.token.expiry.check.interval.ms=10000"])


def test_tokens_are_described_by_owner() -> None:
    async def script(scene: Scene) -> None:
        alice, bob = await log_in(scene), await log_in(scene, "bob", "pw-b")
        one, other = await create(alice), await create(bob)
        assert await describe(alice, "bob") == [("bob", other.token_id)]
        assert await describe(alice, "alice") == [("alice", one.token_id)]
        assert len(await describe(bob)) == 2

    on_broker(script, settings=WITH_TOKENS)


def test_renewer_of_another_type_is_rejected() -> None:
    async def script(scene: Scene) -> None:
        alice = await log_in(scene)
        renewer = CreateDelegationTokenRequest.CreatableRenewers(principal_type="Group", principal_name="g")
        response = await alice.ask(3, CreateDelegationTokenRequest(renewers=[renewer], max_lifetime_ms=-1))
        assert response.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE

    on_broker(script, settings=WITH_TOKENS)


def test_tokens_need_a_secret_key() -> None:
    async def script(scene: Scene) -> None:
        alice = await log_in(scene)
        for response in (await create(alice), await renew(alice, b""), await expire(alice, b"")):
            assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED

    on_broker(script, settings=WITH_ALL)


def test_anonymous_connection_manages_no_tokens() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        for response in (await create(talker), await renew(talker, b""), await expire(talker, b"")):
            assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        described = await talker.ask(3, DescribeDelegationTokenRequest(owners=None))
        assert described.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    on_broker(script, settings=["delegation.token.secret.key=the key"])


def test_tokens_of_others_need_permission() -> None:
    allowed: set[tuple[Operation, Resource]] = set()

    class Chosen(ScriptedAuthorizer):
        def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
            return (operation, resource) in allowed

    async def script(scene: Scene) -> None:
        alice, bob = await log_in(scene), await log_in(scene, "bob", "pw-b")
        assert (await create(alice, owner="bob")).error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        allowed.add((Operation.CREATE_TOKENS, Resource(ResourceKind.USER, "User:bob")))
        token = await create(alice, owner="bob")
        assert (token.principal_name, token.token_requester_principal_name) == ("bob", "alice")
        own = await create(bob)
        assert await describe(alice) == [("bob", token.token_id)]
        allowed.add((Operation.DESCRIBE, Resource(ResourceKind.DELEGATION_TOKEN, own.token_id)))
        assert len(await describe(alice)) == 2

    on_broker(script, settings=WITH_TOKENS, authorizer=Chosen())
