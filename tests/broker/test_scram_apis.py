"""DescribeUserScramCredentials and AlterUserScramCredentials."""

from typing import Any

from broker_scene import Scene, ScriptedAuthorizer, Talker, on_broker
from sasl_scene import create_user

from moldau.broker.access import Client, Operation, Resource
from moldau.model.errors import ErrorCode
from moldau.wire.messages import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest


async def describe(talker: Talker, *names: str) -> list[Any]:
    users = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
    response = await talker.ask(0, DescribeUserScramCredentialsRequest(users=users or None))
    assert response.error_code == 0
    return [
        (each.user, ErrorCode(each.error_code), [(info.mechanism, info.iterations) for info in each.credential_infos])
        for each in response.results
    ]


def test_users_are_described_by_mechanism_and_survive_a_restart() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert await describe(talker) == []
        await create_user(talker, "bob", "pw")
        await create_user(talker, "alice", "pw")
        both = [(name, ErrorCode.NONE, [(1, 4096), (2, 4096)]) for name in ("alice", "bob")]
        assert await describe(talker) == both
        await scene.restart_after_crash()
        assert await describe(await scene.connect()) == both

    on_broker(script)


def test_unknown_and_repeated_users_have_errors_of_their_own() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await create_user(talker, "alice", "pw")
        assert await describe(talker, "alice", "bob", "carol", "carol") == [
            ("alice", ErrorCode.NONE, [(1, 4096), (2, 4096)]),
            ("bob", ErrorCode.RESOURCE_NOT_FOUND, []),
            ("carol", ErrorCode.DUPLICATE_RESOURCE, []),
        ]

    on_broker(script)


def test_deletion_removes_one_mechanism_and_is_an_error_the_second_time() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await create_user(talker, "alice", "pw")
        deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="alice", mechanism=1)
        request = AlterUserScramCredentialsRequest(deletions=[deletion])
        assert [each.error_code for each in (await talker.ask(0, request)).results] == [0]
        assert await describe(talker) == [("alice", ErrorCode.NONE, [(2, 4096)])]
        assert [each.error_code for each in (await talker.ask(0, request)).results] == [ErrorCode.RESOURCE_NOT_FOUND]

    on_broker(script)


class DenyCluster(ScriptedAuthorizer):
    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return resource.name != "kafka-cluster"


def test_without_permission_nothing_is_described_or_altered() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        response = await talker.ask(0, DescribeUserScramCredentialsRequest(users=None))
        assert (response.error_code, response.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ())
        deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="alice", mechanism=1)
        response = await talker.ask(0, AlterUserScramCredentialsRequest(deletions=[deletion, deletion]))
        results = [(each.user, each.error_code) for each in response.results]
        assert results == [("alice", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]

    on_broker(script, authorizer=DenyCluster())
