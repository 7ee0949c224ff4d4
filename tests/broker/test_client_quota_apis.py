"""AlterClientQuotas and DescribeClientQuotas on a broker."""

from typing import Any

import pytest
from broker_scene import Scene, ScriptedAuthorizer, Talker, on_broker

from moldau.broker.access import Client, Operation, Resource
from moldau.model.errors import ErrorCode
from moldau.wire.messages import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)

EXACT, DEFAULT, ANY = 0, 1, 2


async def alter(
    talker: Talker,
    entity: dict[str, str | None],
    version: int = 1,
    *,
    validate_only: bool = False,
    **quotas: float | None,
) -> Any:
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[
                    AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in quotas.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    (entry,) = (await talker.ask(version, request)).entries
    return entry


async def describe(
    talker: Talker, version: int = 1, *, strict: bool = False, **components: tuple[int, str | None]
) -> Any:
    request = DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(
                entity_type=kind.replace("_", "-"), match_type=match_type, match=match
            )
            for kind, (match_type, match) in components.items()
        ],
        strict=strict,
    )
    return await talker.ask(version, request)


def quotas(response: Any) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    return {
        tuple((each.entity_type, each.entity_name) for each in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in response.entries
    }


@pytest.mark.parametrize("version", [0, 1])
def test_client_quotas_are_altered_described_and_survive_a_crash(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        entry = await alter(talker, {"user": "alice"}, version, producer_byte_rate=1000, request_percentage=50.5)
        assert (entry.error_code, entry.error_message) == (0, None)
        assert [(each.entity_type, each.entity_name) for each in entry.entity] == [("user", "alice")]
        await alter(talker, {"user": None, "client-id": "app"}, version, consumer_byte_rate=7)
        await scene.restart_after_crash()
        talker = await scene.connect()
        assert quotas(await describe(talker, version)) == {
            (("user", "alice"),): {"producer_byte_rate": 1000.0, "request_percentage": 50.5},
            (("client-id", "app"), ("user", None)): {"consumer_byte_rate": 7.0},
        }
        assert quotas(await describe(talker, version, strict=True, user=(DEFAULT, None), client_id=(EXACT, "app"))) == {
            (("client-id", "app"), ("user", None)): {"consumer_byte_rate": 7.0}
        }

    on_broker(script)


def test_invalid_quota_requests_have_error_codes() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        entry = await alter(talker, {"user": "alice"}, speed=1)
        assert entry.error_code == ErrorCode.INVALID_REQUEST
        assert entry.error_message == "Invalid configuration key speed"
        response = await describe(talker, group=(EXACT, "g"))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert response.entries is None
        response = await describe(talker, user=(EXACT, None))
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert not quotas(await describe(talker))

    on_broker(script)


def test_validate_only_alters_no_quota() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        entry = await alter(talker, {"ip": "10.0.0.1"}, validate_only=True, connection_creation_rate=5)
        assert entry.error_code == 0
        assert not quotas(await describe(talker))

    on_broker(script)


class DenyAll(ScriptedAuthorizer):
    """Denies every operation on the cluster."""

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return False


def test_client_quotas_need_config_operations_on_the_cluster() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        entry = await alter(talker, {"user": "alice"}, producer_byte_rate=1)
        assert entry.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        response = await describe(talker)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert response.entries is None

    on_broker(script, authorizer=DenyAll())
