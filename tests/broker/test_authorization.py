"""Authorization: with an authorizer that denies everything, no API reveals or changes anything."""

from typing import Any

import pytest
from api_requests import REQUESTS, error_codes
from broker_scene import BROKER, CONTROLLER, WITH_CONTROLLER, Scene, ScriptedAuthorizer, on_broker

from moldau.broker.access import Client, Operation, Resource, ResourceKind
from moldau.broker.handlers.table import served_apis
from moldau.broker.requests.router import ServedOn
from moldau.model.errors import ErrorCode
from moldau.model.ids import Address
from moldau.wire import messages as m

OPEN_TO_ALL = {
    "ApiVersions",
    "SaslAuthenticate",
    "SaslHandshake",
    # As in Kafka, every client may push its metrics.
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    # Clients without authentication get another error: see test_delegation_tokens.
    "CreateDelegationToken",
    "DescribeDelegationToken",
    "ExpireDelegationToken",
    "RenewDelegationToken",
}
AUTHORIZATION_ERRORS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class DenyAll(ScriptedAuthorizer):
    """Denies everything."""

    def __init__(self) -> None:
        self.requested: list[tuple[Operation, Resource]] = []

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:
        assert client.principal == "User:ANONYMOUS"
        self.requested.append((operation, resource))
        return False


@pytest.mark.parametrize("api", [api for api in served_apis() if api.name not in OPEN_TO_ALL], ids=lambda api: api.name)
def test_every_api_rejects_an_unauthorized_principal(api: Any) -> None:
    for version in {
        api.oldest,
        12 if api.name in ("Produce", "Fetch") else 5 if api.name == "DeleteTopics" else api.newest,
    }:
        for kind, address in ((ServedOn.BROKER, BROKER), (ServedOn.CONTROLLER, CONTROLLER)):
            if kind in api.served_on:
                _check_rejected(api.name, version, address)


def _check_rejected(name: str, version: int, address: Address) -> None:
    authorizer = DenyAll()

    async def script(scene: Scene) -> None:
        talker = await scene.connect(address)
        response = await talker.ask(version, REQUESTS[name]())
        codes = {ErrorCode(code) for code in error_codes(response)} - {ErrorCode.NONE}
        if name == "ListGroups":  # as in Kafka, groups without permission are left out
            assert not response.groups
        elif name == "ListTransactions":
            assert not response.transaction_states
        elif name == "DescribeCluster" and address == BROKER:  # which tells no more than Metadata
            assert response.cluster_authorized_operations == -(2**31)
        elif not (name == "DescribeLogDirs" and version < 3):  # the response has no error code there
            assert codes
        assert codes <= AUTHORIZATION_ERRORS, response
        assert scene.node.broker.image.topics == {}

    on_broker(script, authorizer=authorizer, settings=WITH_CONTROLLER)
    assert authorizer.requested or name in ("ListTransactions", "DescribeCluster"), "which ask for what there is"


class DescribeOnly(ScriptedAuthorizer):
    """Allows DESCRIBE on some topics, and nothing else."""

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        if resource.kind is ResourceKind.TOPIC and resource.name.startswith("open"):
            return operation in (Operation.DESCRIBE, Operation.CREATE)
        return operation is Operation.CREATE


def test_metadata_of_all_topics_omits_unauthorized_topics() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("open-1")
        await scene.create("closed-1")
        talker = await scene.connect()
        response = await talker.ask(12, m.MetadataRequest(topics=None, include_topic_authorized_operations=True))
        assert [topic.name for topic in response.topics] == ["open-1"]
        bits = response.topics[0].topic_authorized_operations
        assert bits == 1 << Operation.DESCRIBE.value | 1 << Operation.CREATE.value

    on_broker(script, authorizer=DescribeOnly())
