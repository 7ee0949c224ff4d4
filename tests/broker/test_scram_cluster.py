"""Users of a formatted directory, and a cluster whose nodes authenticate to each other by SCRAM."""

import pytest
from cluster_scene import ALL_CONTROL, ONE_CONTROLLER, Cluster, on_cluster
from sasl_scene import authenticate, handshake

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.broker.drivers.bootstrap_file import read_bootstrap, write_bootstrap
from moldau.machines.access.plain import plain_message
from moldau.machines.access.scram import ScramMechanism, ScramUser, credential_of, derive_credential
from moldau.model.errors import InvalidConfig
from moldau.model.ports import Ports
from moldau.node.node import Node
from moldau.node.scram_argument import parse_scram_user, parse_scram_users
from moldau.wire.messages import FindCoordinatorRequest, UserScramCredentialRecord

SHA_256, SHA_512 = ScramMechanism
NODE = ScramUser("node", SHA_512)
LOGIN = 'ScramLoginModule required username="node" password="pw-n";'
PLAIN = 'PlainLoginModule required user_alice="pw-a";'
BOTH_LISTENERS = (
    "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name=PLAINTEXT",
    "sasl.enabled.mechanisms=SCRAM-SHA-512",
    "listener.name.plaintext.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN",
    "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
    "sasl.mechanism.controller.protocol=SCRAM-SHA-512",
    f"listener.name.plaintext.scram-sha-512.sasl.jaas.config={LOGIN}",
    f"listener.name.controller.scram-sha-512.sasl.jaas.config={LOGIN}",
    f"listener.name.plaintext.plain.sasl.jaas.config={PLAIN}",
)


class ScramCluster(Cluster):
    """Its nodes are formatted with the user of the nodes."""

    async def _run(self, node_id: int, ports: Ports) -> Node:
        if not ports.disk.exists("/data/bootstrap.checkpoint"):
            ports.disk.make_directory("/data")
            write_bootstrap(ports.disk, "/data", {NODE: derive_credential(SHA_512, "pw-n", b"salt", 4096)}, 0)
        return await super()._run(node_id, ports)


@pytest.mark.parametrize("roles", [ONE_CONTROLLER, ALL_CONTROL])
def test_cluster_forms_by_scram_and_forms_again_after_all_nodes_crashed(roles: tuple[str, ...]) -> None:
    async def script(cluster: Cluster) -> None:
        for _ in range(2):
            await cluster.until_active()
            assert list(cluster.nodes[1].broker.metadata.image.scram_credentials) == [NODE]
            assert all(node.broker.authentication_meter.successes for node in list(cluster.nodes.values())[:1])
            for node_id in list(cluster.nodes):
                cluster.kill(node_id)
            await cluster.start_all()
        talker = await cluster.connect(1)
        await handshake(talker)
        assert (await authenticate(talker, plain_message("alice", "pw-a"))).error_code == 0
        await cluster.create("t", talker=talker)

    on_cluster(script, roles=roles, settings=BOTH_LISTENERS, kind=ScramCluster)


def test_internal_topic_is_created_by_the_principal_of_the_node() -> None:
    async def script(cluster: Cluster) -> None:
        other = next(node_id for node_id in cluster.nodes if node_id != cluster.active)
        talker = await cluster.connect(other)
        await handshake(talker)
        assert (await authenticate(talker, plain_message("alice", "pw-a"))).error_code == 0
        await talker.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        await cluster.until(lambda: "__consumer_offsets" in cluster.nodes[other].broker.image.topics, 5.0)

    users = ("super.users=User:node;User:alice", f"authorizer.class.name={STANDARD_AUTHORIZER}")
    on_cluster(script, roles=ALL_CONTROL, settings=(*BOTH_LISTENERS, *users), kind=ScramCluster)


def test_argument_has_the_syntax_of_kafka() -> None:
    assert parse_scram_user("SCRAM-SHA-256=[name=alice,password=pw]", bytes) == (
        ScramUser("alice", SHA_256),
        derive_credential(SHA_256, "pw", bytes(20), 4096),
    )
    options = 'name="alice",salt=c2FsdA==,saltedpassword=c2FsdGVk,iterations=8192'
    assert parse_scram_user(f"SCRAM-SHA-512=[{options}]", bytes) == (
        ScramUser("alice", SHA_512),
        credential_of(SHA_512, b"salted", b"salt", 8192),
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("SCRAM-SHA-1=[name=a,password=pw]", "must begin with SCRAM-SHA-256 or SCRAM-SHA-512"),
        ("SCRAM-SHA-256", "must begin with"),
        ("SCRAM-SHA-256=name=a", "in brackets"),
        ("SCRAM-SHA-256=[password=pw]", "must have name="),
        ("SCRAM-SHA-256=[name=a]", "must have password= or saltedpassword="),
        ("SCRAM-SHA-256=[name=a,saltedpassword=AAAA]", "must have salt="),
        ("SCRAM-SHA-256=[name=a,salt=?,saltedpassword=AAAA]", "salt of --add-scram is not base64"),
        ("SCRAM-SHA-256=[name=a,password=pw,iterations=4095]", "from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=pw,iterations=16385]", "from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=pw,more=1]", "Option 3"),
    ],
)
def test_invalid_argument_is_rejected_without_its_password(argument: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message) as error:
        parse_scram_user(argument, bytes)
    assert "pw" not in str(error.value)


def test_user_that_is_given_twice_is_rejected() -> None:
    with pytest.raises(InvalidConfig, match="twice"):
        parse_scram_users(["SCRAM-SHA-256=[name=a,password=1]", "SCRAM-SHA-256=[name=a,password=2]"], bytes)


def test_bootstrap_file_of_a_cluster_is_read_as_it_was_written() -> None:
    async def script(cluster: Cluster) -> None:
        disk = cluster.nodes[1]._ports.disk
        records = read_bootstrap(disk, "/data")
        (user,) = records
        assert isinstance(user, UserScramCredentialRecord)
        assert (user.name, user.mechanism, user.iterations) == ("node", 2, 4096)
        assert read_bootstrap(disk, "/elsewhere") == []

    on_cluster(script, roles=("broker,controller",), settings=BOTH_LISTENERS, kind=ScramCluster)
