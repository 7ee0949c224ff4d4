"""CreateAcls, DescribeAcls and DeleteAcls, and the authorizer that follows them."""

import json
from typing import Any

import pytest
from acl_scene import ADMIN, ALICE, AclScene, acl, creation, deletion, described, description, with_acls
from broker_scene import CONTROLLER, WITH_CONTROLLER, Scene, batch, fetch_request, on_broker, produce_request

from moldau.broker.access import Client, Resource
from moldau.broker.authorizer import StandardAuthorizer
from moldau.machines.access.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import AuthorizerNotReady, ErrorCode
from moldau.wire import messages as m

pytestmark = pytest.mark.proves("O4", part="access control lists")

READ_T = acl()
WRITE_ALL = acl(Operation.WRITE, "*")
DENY_PREFIX = acl(Operation.ALL, "t", permission=Permission.DENY, pattern=PatternType.PREFIXED)
GROUP = acl(Operation.READ, "g", ResourceKind.GROUP, principal="User:bob", host="10.0.0.1")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        admin = await scene.connect(ADMIN)
        created = await admin.ask(version, creation(READ_T, WRITE_ALL, DENY_PREFIX, GROUP))
        assert [each.error_code for each in created.results] == [0] * 4
        found = await admin.ask(version, description())
        assert described(found) == sorted([READ_T, WRITE_ALL, DENY_PREFIX, GROUP])
        found = await admin.ask(version, description(AclFilter(name="tx", pattern=PatternType.MATCH)))
        assert described(found) == sorted([WRITE_ALL, DENY_PREFIX])
        deleted = await admin.ask(version, deletion(AclFilter(principal="User:bob"), AclFilter(name="none")))
        assert [len(each.matching_acls) for each in deleted.filter_results] == [1, 0]
        assert deleted.filter_results[0].matching_acls[0].host == "10.0.0.1"
        assert described(await admin.ask(version, description())) == sorted([READ_T, WRITE_ALL, DENY_PREFIX])

    with_acls(script, monkeypatch)


def test_acls_survive_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.allow(READ_T, GROUP)
        await scene.scene.restart_after_crash()
        admin = await scene.connect(ADMIN)
        assert described(await admin.ask(3, description())) == [READ_T, GROUP]
        alice = await scene.connect(ALICE)
        response = await alice.ask(11, fetch_request("t", 0))
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_acls(script, monkeypatch)


def test_invalid_acls_have_errors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        admin = await scene.connect(ADMIN)
        request = creation(READ_T, READ_T._replace(name=""), GROUP)
        request.creations[2].operation = 99
        created = await admin.ask(3, request)
        codes = [each.error_code for each in created.results]
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
        unknown = description()
        unknown.operation = 99
        assert (await admin.ask(3, unknown)).error_code == ErrorCode.INVALID_REQUEST
        assert described(await admin.ask(3, description())) == [READ_T]

    with_acls(script, monkeypatch)


def test_acl_apis_need_permissions_on_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        alice = await scene.connect(ALICE)

        async def codes() -> list[int]:
            created, deleted = await alice.ask(3, creation(GROUP)), await alice.ask(3, deletion(AclFilter(name="no")))
            found = await alice.ask(3, description())
            return [created.results[0].error_code, deleted.filter_results[0].error_code, found.error_code]

        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await codes() == [denied, denied, denied]
        await scene.allow(acl(Operation.DESCRIBE, "kafka-cluster", ResourceKind.CLUSTER))
        assert await codes() == [denied, denied, ErrorCode.NONE]
        await scene.allow(acl(Operation.ALTER, "kafka-cluster", ResourceKind.CLUSTER))
        assert await codes() == [ErrorCode.NONE] * 3

    with_acls(script, monkeypatch)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_security_is_disabled(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        created = await talker.ask(version, creation(READ_T, GROUP))
        assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
        deleted = await talker.ask(version, deletion(AclFilter()))
        assert [each.error_code for each in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]
        assert (await talker.ask(version, description())).error_code == ErrorCode.SECURITY_DISABLED

    on_broker(script)


def test_acls_are_described_on_controller_listeners_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.allow(READ_T)
        admin = await scene.connect(ADMIN, CONTROLLER)
        assert described(await admin.ask(3, description())) == [READ_T]

    with_acls(script, monkeypatch, settings=WITH_CONTROLLER)


async def error_of_fetch(talker: Any, **options: Any) -> int:
    response = await talker.ask(11, fetch_request("t", 0, **options))
    code: int = response.responses[0].partitions[0].error_code
    return code


def test_acl_takes_effect_with_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.scene.create("t")
        alice = await scene.connect(ALICE)
        assert await error_of_fetch(alice) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await scene.allow(READ_T)
        assert await error_of_fetch(alice) == ErrorCode.NONE
        await scene.allow(DENY_PREFIX)
        assert await error_of_fetch(alice) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await scene.revoke(AclFilter(permission=Permission.DENY))
        assert await error_of_fetch(alice) == ErrorCode.NONE

    with_acls(script, monkeypatch)


def test_revoked_producer_is_rejected_on_its_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.scene.create("t")
        await scene.allow(acl(Operation.WRITE))
        alice = await scene.connect(ALICE)

        async def sent() -> int:
            response = await alice.ask(9, produce_request("t", batch(b"v")))
            code: int = response.responses[0].partition_responses[0].error_code
            return code

        assert [await sent() for _ in range(5)] == [ErrorCode.NONE] * 5
        await scene.revoke()
        assert [await sent() for _ in range(2)] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
        assert scene.node.broker.partitions.get("t", 0).log.end_offset == 5

    with_acls(script, monkeypatch)


def test_waiting_fetch_of_a_revoked_consumer_returns_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.scene.create("t")
        await scene.allow(READ_T)
        alice, admin = await scene.connect(ALICE), await scene.connect(ADMIN)
        waiting = alice.begin(11, fetch_request("t", 0, max_wait_ms=60_000))
        await error_of_fetch(admin)  # the broker has handled a later request: the fetch waits
        assert not waiting.done()
        await scene.revoke()
        await admin.ask(9, produce_request("t", batch(b"secret")))
        partition = (await waiting).responses[0].partitions[0]
        assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not partition.records

    with_acls(script, monkeypatch)


def test_resources_without_acls_are_open_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.scene.create("t")
        alice = await scene.connect(ALICE)
        assert await error_of_fetch(alice) == ErrorCode.NONE
        await scene.allow(acl(principal="User:bob"))
        assert await error_of_fetch(alice) == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    with_acls(script, monkeypatch, settings=["allow.everyone.if.no.acl.found=true"])


def test_denials_are_in_the_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.scene.create("t")
        alice = await scene.connect(ALICE)
        await error_of_fetch(alice)
        await alice.ask(12, m.MetadataRequest(topics=None, include_topic_authorized_operations=True))
        (line,) = [json.loads(each) for each in scene.scene.host.disk.mount().read("/data/audit.jsonl").splitlines()]
        assert line.pop("time").endswith("Z")
        assert line == {
            "decision": "denied",
            "principal": ALICE,
            "host": "client",
            "operation": "READ",
            "resource_type": "TOPIC",
            "resource_name": "t",
            "api": "Fetch",
            "listener": "PLAINTEXT",
            "client_id": "scene",
        }

    with_acls(script, monkeypatch)


@pytest.mark.parametrize("acls", [[], [acl(Operation.WRITE)]], ids=["denied", "allowed"])
def test_produce_request_is_audited_once(monkeypatch: pytest.MonkeyPatch, acls: list[AclBinding]) -> None:
    async def script(scene: AclScene) -> None:
        await scene.scene.create("t")
        await scene.allow(*acls)
        alice = await scene.connect(ALICE)
        await alice.ask(9, produce_request("t", batch(b"v")))
        lines = [json.loads(each) for each in scene.scene.host.disk.mount().read("/data/audit.jsonl").splitlines()]
        assert len([each for each in lines if each["api"] == "Produce"]) == 1

    with_acls(script, monkeypatch, settings=["moldau.audit.log.allowed=true"])


def test_allowed_operations_are_audited_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.scene.create("t")
        await scene.allow(READ_T)
        alice = await scene.connect(ALICE)
        await error_of_fetch(alice)
        lines = [json.loads(each) for each in scene.scene.host.disk.mount().read("/data/audit.jsonl").splitlines()]
        assert lines[-1]["decision"] == "allowed"
        assert (lines[-1]["principal"], lines[-1]["api"]) == (ALICE, "Fetch")

    with_acls(script, monkeypatch, settings=["moldau.audit.log.allowed=true"])


def test_authorizer_allows_only_super_users_until_it_is_loaded() -> None:
    authorizer = StandardAuthorizer(frozenset({ADMIN}), allows_without_acl=True)
    topic = Resource(ResourceKind.TOPIC, "t")
    assert authorizer.is_allowed(Client(ADMIN, "h"), Operation.READ, topic)
    alice = Client(ALICE, "h")
    image = MetadataImage(acls={b"1": DENY_PREFIX})
    authorizer.follow(image, is_caught_up=False)
    with pytest.raises(AuthorizerNotReady):
        authorizer.is_allowed(alice, Operation.READ, topic)
    before = authorizer.generation
    authorizer.follow(image, is_caught_up=True)
    assert authorizer.generation > before
    assert not authorizer.is_allowed(alice, Operation.READ, topic)
    assert authorizer.is_allowed(alice, Operation.READ, Resource(ResourceKind.TOPIC, "x"))


def test_generation_moves_with_the_acls_only() -> None:
    authorizer = StandardAuthorizer(frozenset(), allows_without_acl=False)
    authorizer.follow(MetadataImage(acls={b"1": READ_T}), is_caught_up=True)
    first = authorizer.generation
    authorizer.follow(MetadataImage(acls={b"1": READ_T}, next_producer_id=5), is_caught_up=True)
    assert authorizer.generation == first
    authorizer.follow(MetadataImage(acls={b"2": READ_T}), is_caught_up=True)
    assert authorizer.generation > first
    assert authorizer.is_allowed(Client(ALICE, "h"), Operation.DESCRIBE, Resource(ResourceKind.TOPIC, "t"))
