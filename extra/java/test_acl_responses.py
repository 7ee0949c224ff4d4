"""ACLs: Kafka's own command against Moldau, and the response of each broker to a client under the same ACLs."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from apache_kafka import ApacheKafka, has_java, java, run
from protocol_requests import OWN, BrokerConnection, differences, plain

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.testing import Broker
from moldau.wire import messages as m

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.timeout(300)]

CLIENT: Final = "User:ANONYMOUS"  # of every connection, those between the nodes included
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = range(2, 12)
DENY, ALLOW = 2, 3
NAMES: Final = {TOPIC: "t", GROUP: "g", TRANSACTIONAL_ID: "x", CLUSTER: "kafka-cluster"}
SETTINGS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",  # so that the broker itself needs no super user, who could not be denied
    "auto.create.topics.enable": "false",
}
# The client of this principal has ACLs of others on everything, so that only its own ACLs count.
OTHERS: Final = [(kind, "*" if kind != CLUSTER else NAMES[kind], ALL, ALLOW, "User:other") for kind in NAMES]
KEPT: Final = [(CLUSTER, NAMES[CLUSTER], operation, ALLOW, CLIENT) for operation in (CLUSTER_ACTION, ALTER, DESCRIBE)]
SCENARIOS: Final = [
    [],
    *([(kind, NAMES[kind], operation, ALLOW, CLIENT)] for kind in NAMES for operation in range(ALL, ALTER_CONFIGS + 1)),
    *(
        [(kind, "*", ALL, ALLOW, CLIENT), (kind, NAMES[kind], operation, DENY, CLIENT)]
        for kind in (TOPIC, GROUP, TRANSACTIONAL_ID)
        for operation in range(READ, ALTER_CONFIGS + 1)
    ),
]

Acl = tuple[int, str, int, int, str]


REQUESTS: Final[dict[str, tuple[int, Callable[[], Any]]]] = {
    "metadata": (
        12,
        lambda: m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=name) for name in ("t", "missing")],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        ),
    ),
    "metadata of all topics": (12, lambda: m.MetadataRequest(topics=None, allow_auto_topic_creation=False)),
    "metadata with cluster operations": (
        10,
        lambda: m.MetadataRequest(topics=[], include_cluster_authorized_operations=True),
    ),
    "describe cluster": (0, lambda: m.DescribeClusterRequest(include_cluster_authorized_operations=True)),
    "fetch": (
        11,
        lambda: m.FetchRequest(
            topics=[m.FetchRequest.FetchTopic(topic="t", partitions=[m.FetchRequest.FetchPartition(partition=0)])]
        ),
    ),
    "list offsets": (
        7,
        lambda: m.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                m.ListOffsetsRequest.ListOffsetsTopic(
                    name="t", partitions=[m.ListOffsetsRequest.ListOffsetsPartition(timestamp=-1)]
                )
            ],
        ),
    ),
    "offset for leader epoch": (
        4,
        lambda: m.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic="t", partitions=[m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition()]
                )
            ],
        ),
    ),
    "describe topic configs": (
        4,
        lambda: m.DescribeConfigsRequest(
            resources=[
                m.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name="t", configuration_keys=["retention.ms"]
                )
            ]
        ),
    ),
    "alter topic configs": (
        1,
        lambda: m.IncrementalAlterConfigsRequest(
            resources=[m.IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="t")],
            validate_only=True,
        ),
    ),
    "create topics": (
        7,
        lambda: m.CreateTopicsRequest(
            timeout_ms=10_000,
            topics=[m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)],
            validate_only=True,
        ),
    ),
    "create partitions": (
        3,
        lambda: m.CreatePartitionsRequest(
            timeout_ms=10_000,
            topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=1, assignments=None)],
            validate_only=True,
        ),
    ),
    "delete a missing topic": (5, lambda: m.DeleteTopicsRequest(timeout_ms=10_000, topic_names=["missing"])),
    "delete records": (
        2,
        lambda: m.DeleteRecordsRequest(
            timeout_ms=10_000,
            topics=[
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    name="t", partitions=[m.DeleteRecordsRequest.DeleteRecordsPartition(offset=0)]
                )
            ],
        ),
    ),
    "describe producers": (
        0,
        lambda: m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])]
        ),
    ),
    "init producer id": (4, lambda: m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)),
    "describe transactions": (0, lambda: m.DescribeTransactionsRequest(transactional_ids=["x"])),
    "end transaction": (3, lambda: m.EndTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0)),
    "add partitions": (
        3,
        lambda: m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        ),
    ),
    "list groups": (4, lambda: m.ListGroupsRequest()),
    "describe groups": (5, lambda: m.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)),
    "heartbeat": (4, lambda: m.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)),
    "leave group": (
        4,
        lambda: m.LeaveGroupRequest(
            group_id="g", members=[m.LeaveGroupRequest.MemberIdentity(member_id="m", group_instance_id=None)]
        ),
    ),
    "offset fetch": (
        8,
        lambda: m.OffsetFetchRequest(
            groups=[
                m.OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id="g",
                    topics=[m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
                )
            ]
        ),
    ),
    "offset commit": (
        8,
        lambda: m.OffsetCommitRequest(
            group_id="g",
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name="t", partitions=[m.OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=1)]
                )
            ],
        ),
    ),
    "offset delete": (
        0,
        lambda: m.OffsetDeleteRequest(
            group_id="g",
            topics=[
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name="t", partitions=[m.OffsetDeleteRequest.OffsetDeleteRequestPartition()]
                )
            ],
        ),
    ),
    "describe quorum of the wrong topic": (
        1,
        lambda: m.DescribeQuorumRequest(
            topics=[
                m.DescribeQuorumRequest.TopicData(
                    topic_name="t", partitions=[m.DescribeQuorumRequest.PartitionData(partition_index=0)]
                )
            ]
        ),
    ),
    "describe broker configs": (
        4,
        lambda: m.DescribeConfigsRequest(
            resources=[
                m.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=4, resource_name="1", configuration_keys=["message.max.bytes"]
                )
            ]
        ),
    ),
    "reassignments": (0, lambda: m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=1000)),
    "log dirs": (4, lambda: m.DescribeLogDirsRequest(topics=[])),
}
# Besides what differs between all brokers: sizes and folders of a disk, coordinators that load at their own pace.
DIFFERENT: Final = OWN | {"log_dir", "total_bytes", "usable_bytes", "controller_id", "brokers", "node_endpoints"}


class Secured:
    """A broker whose ACLs the test chooses."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._connection = BrokerConnection(bootstrap_servers)
        self._chosen: list[Acl] = []
        topic = m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        assert self.ask(7, m.CreateTopicsRequest(timeout_ms=10_000, topics=[topic])).topics[0].error_code == 0
        for key_type, key in ((0, "g"), (1, "x")):
            search = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            while self.ask(4, search).coordinators[0].error_code:
                pass  # the topic of the coordinator is being created
        offsets = REQUESTS["offset commit"]
        while self.ask(offsets[0], offsets[1]()).topics[0].partitions[0].error_code:
            pass  # the coordinator is loading
        producer = REQUESTS["init producer id"]
        while self.ask(producer[0], producer[1]()).error_code:
            pass  # the controller has not allocated producer ids yet
        self._create([*OTHERS, *KEPT])

    def close(self) -> None:
        self._connection.close()

    def ask(self, version: int, request: Any) -> Any:
        return self._connection.ask(version, request)

    def _create(self, acls: list[Acl]) -> None:
        request = m.CreateAclsRequest(
            creations=[
                m.CreateAclsRequest.AclCreation(
                    resource_type=kind,
                    resource_name=name,
                    principal=principal,
                    host="*",
                    operation=operation,
                    permission_type=permission,
                )
                for kind, name, operation, permission, principal in acls
            ]
        )
        assert not any(each.error_code for each in self.ask(3, request).results)

    def choose(self, acls: list[Acl]) -> None:
        """Replace the chosen ACLs, and wait until they are described."""
        if self._chosen:
            filters = [
                m.DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=kind,
                    resource_name_filter=name,
                    principal_filter=principal,
                    host_filter=None,
                    operation=operation,
                    permission_type=permission,
                )
                for kind, name, operation, permission, principal in self._chosen
            ]
            assert not any(each.error_code for each in self.ask(3, m.DeleteAclsRequest(filters=filters)).filter_results)
        self._chosen = [each for each in acls if each not in KEPT]
        if self._chosen:
            self._create(self._chosen)
        expected = len(OTHERS) + len(KEPT) + len(self._chosen)
        everything = m.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        )
        while sum(len(each.acls) for each in self.ask(3, everything).resources) != expected:
            pass  # Kafka's broker takes over what its controller has written

    def responses(self) -> dict[str, Any]:
        return {
            name: comparable(plain(self.ask(version, build()), DIFFERENT))
            for name, (version, build) in REQUESTS.items()
        }


def comparable(response: Any) -> Any:
    """Ignore the order of topics, and whether a list without elements is empty or null."""
    if isinstance(response, dict):
        return {name: comparable(each) for name, each in response.items()}
    if isinstance(response, list):
        return sorted((comparable(each) for each in response), key=repr)
    return [] if response is None else response


@pytest.fixture(scope="module")
def ours() -> Iterator[Secured]:
    settings = {**SETTINGS, "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with Broker(settings=settings) as broker, closing(Secured(broker.bootstrap_servers)) as secured:
        yield secured


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("kafka") / "data"
    with (
        ApacheKafka(folder, settings=SETTINGS) as kafka,
        closing(Secured(kafka.bootstrap_servers)) as secured,
    ):
        yield secured


def test_clients_get_the_responses_of_kafka_under_the_same_acls(ours: Secured, theirs: Secured) -> None:
    problems = []
    for acls in SCENARIOS:
        ours.choose(acls)
        theirs.choose(acls)
        found = differences(ours.responses(), theirs.responses())
        problems += [f"{acls}: {each}" for each in found]
    assert not problems, "\n".join(["", *problems])


def test_acl_command_of_kafka_manages_acls() -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": CLIENT}
    with Broker(settings=settings) as broker:

        def command(*arguments: str) -> str:
            tool = java("org.apache.kafka.tools.AclCommand", "--bootstrap-server", broker.bootstrap_servers)
            return run([*tool, *arguments])

        command("--add", "--allow-principal", "User:alice", "--producer", "--topic", "orders", "--idempotent")
        command("--add", "--deny-principal", "User:bob", "--operation", "Read", "--topic", "ord")
        command(
            "--add",
            "--allow-principal",
            "User:bob",
            "--consumer",
            "--topic",
            "pre",
            "--group",
            "g",
            "--resource-pattern-type",
            "prefixed",
        )
        listed = command("--list")
        for part in ("User:alice", "operation=WRITE", "operation=IDEMPOTENT_WRITE", "patternType=PREFIXED", "DENY"):
            assert part in listed
        assert "User:bob" in command("--list", "--topic", "pre-1", "--resource-pattern-type", "match")
        command("--remove", "--force", "--topic", "orders")
        assert "orders" not in command("--list")
