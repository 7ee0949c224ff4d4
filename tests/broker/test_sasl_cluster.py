"""A cluster whose nodes authenticate to each other by SASL."""

import pytest
from broker_scene import batch, produce_request
from cluster_scene import ALL_CONTROL, CLIENTS, CONTROLLERS, ONE_CONTROLLER, Cluster, on_cluster
from sasl_scene import authenticate, handshake

from moldau.machines.access.plain import plain_message
from moldau.model.errors import InvalidConfig
from moldau.node.configuration import load_configuration
from moldau.wire.messages import MetadataRequest

MODULE = "PlainLoginModule required"
LOGIN = f'{MODULE} username="node" password="pw-n" user_node="pw-n" user_alice="pw-a";'
BOTH_LISTENERS = (
    "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name=PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    "sasl.mechanism.controller.protocol=PLAIN",
    f"listener.name.plaintext.plain.sasl.jaas.config={LOGIN}",
    f"listener.name.controller.plain.sasl.jaas.config={LOGIN}",
)


async def produce_as_alice(cluster: Cluster, node_id: int, topic: str) -> int:
    """Produce to a partition's leader; return the error code."""
    talker = await cluster.connect(node_id)
    await handshake(talker)
    assert (await authenticate(talker, plain_message("alice", "pw-a"))).error_code == 0
    response = await talker.ask(9, produce_request(topic, batch(b"a")))
    return int(response.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("roles", [ONE_CONTROLLER, ALL_CONTROL])
def test_nodes_authenticate_to_each_other(roles: tuple[str, ...]) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.until_active()
        talker = await cluster.connect(1)
        await handshake(talker)
        assert (await authenticate(talker, plain_message("alice", "pw-a"))).error_code == 0
        await cluster.create("t", through=1, talker=talker)
        assert await produce_as_alice(cluster, cluster.leaders("t")[0], "t") == 0
        for node in cluster.nodes.values():
            meter = node.broker.authentication_meter
            assert meter.failures == 0
            for limits in (node._listeners.limits, node._listeners._controller_limits):
                assert {each.principal for each in limits._connections} <= {"User:node", "User:alice"}

    on_cluster(script, roles=roles, settings=BOTH_LISTENERS)


def test_quorum_serves_no_request_without_authentication() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.until_active()
        for port in (CLIENTS, CONTROLLERS):
            talker = await cluster.connect(1, port)
            with pytest.raises(ConnectionResetError):
                await talker.ask(12, MetadataRequest(topics=[]))

    on_cluster(script, settings=BOTH_LISTENERS)


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        ("sasl.mechanism.inter.broker.protocol", "inter.broker.protocol is GSSAPI"),
        ("sasl.mechanism.controller.protocol", "controller.protocol is GSSAPI"),
        ("username", "needs a user name and a password"),
    ],
)
def test_node_without_credentials_for_its_peers_is_rejected(dropped: str, message: str) -> None:
    kept = [each for each in BOTH_LISTENERS if not each.startswith(dropped)]
    if dropped == "username":
        kept = [each.replace('username="node"', "") for each in kept]
    settings = [
        "listeners=PLAINTEXT://n1:9092,CONTROLLER://n1:9093",
        "controller.listener.names=CONTROLLER",
        "controller.quorum.voters=1@n1:9093,2@n2:9093",
        *kept,
    ]
    with pytest.raises(InvalidConfig, match=message):
        load_configuration(overrides=settings)
