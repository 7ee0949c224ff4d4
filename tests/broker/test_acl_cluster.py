"""ACLs in a cluster: they hold on every broker, and forwarded requests are authorized as the client."""

import json

import pytest
from acl_scene import ADMIN, ALICE, SECURE, Principals, acl, creation, deletion, described, description
from broker_scene import fetch_request
from cluster_scene import ALL_CONTROL, Cluster, on_cluster

from moldau.machines.access.acls import AclFilter, Operation, ResourceKind
from moldau.model.errors import ErrorCode
from moldau.wire import messages as m

TOPIC = m.CreateTopicsRequest(
    topics=[m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=3)]
)


def test_forwarded_request_is_authorized_as_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    principals = Principals(monkeypatch)

    async def script(cluster: Cluster) -> None:
        active = cluster.active
        other = next(node_id for node_id in cluster.nodes if node_id != active)
        with principals.connecting_as(ALICE):
            alice = await cluster.connect(other)
        with principals.connecting_as(ADMIN):
            admin = await cluster.connect(other)
        denied = await alice.ask(7, TOPIC)
        assert denied.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        lines = cluster.host(active).disk.mount().read("/data/audit.jsonl").splitlines()
        (line,) = [json.loads(each) for each in lines]
        assert (line["principal"], line["api"], line["operation"]) == (ALICE, "CreateTopics", "CREATE")
        created = await admin.ask(3, creation(acl(Operation.CREATE)))
        assert created.results[0].error_code == ErrorCode.NONE
        allowed = await alice.ask(7, TOPIC)
        assert allowed.topics[0].error_code == ErrorCode.NONE

    on_cluster(script, roles=ALL_CONTROL, settings=SECURE)


def test_acls_take_effect_on_every_broker_and_survive_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    principals = Principals(monkeypatch)

    async def codes(cluster: Cluster) -> set[int]:
        found = set()
        for node_id in cluster.nodes:
            with principals.connecting_as(ALICE):
                alice = await cluster.connect(node_id)
            response = await alice.ask(11, fetch_request("t", 0))
            found.add(response.responses[0].partitions[0].error_code)
            alice.connection.close()
        return found

    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        assert await codes(cluster) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        admin = await cluster.connect(1)
        grants = [acl(), acl(Operation.READ, "g", ResourceKind.GROUP)]
        assert not any(each.error_code for each in (await admin.ask(3, creation(*grants))).results)
        await cluster.until(lambda: all(len(node.broker.image.acls) == 2 for node in cluster.nodes.values()), 2.0)
        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED not in await codes(cluster)
        for node_id in list(cluster.nodes):
            cluster.kill(node_id)
        await cluster.start_all()
        await cluster.until_active()
        admin = await cluster.connect(2)
        assert described(await admin.ask(3, description())) == sorted(grants)
        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED not in await codes(cluster)
        await admin.ask(3, deletion(AclFilter(principal=ALICE)))
        await cluster.until(lambda: not any(node.broker.image.acls for node in cluster.nodes.values()), 2.0)
        assert await codes(cluster) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    on_cluster(script, roles=ALL_CONTROL, settings=SECURE)
