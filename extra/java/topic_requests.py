"""Requests about topics, configs and the cluster; valid and invalid ones. The order matters."""

from collections.abc import Sequence
from typing import Any, Final

from protocol_requests import Request, Scene
from record_requests import NO_ID, UNKNOWN_ID

from moldau.wire.messages import (
    AlterConfigsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    MetadataRequest,
)

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32
SET, DELETE, APPEND, SUBTRACT = range(4)

# -- metadata


def metadata(name: str, versions: range, names: Sequence[str | None], topic_id: bytes = NO_ID) -> Request:
    """The name "" stands for the topic of the scene, and the id b"" for its id."""

    def request(scene: Scene) -> MetadataRequest:
        requested = [
            MetadataRequest.MetadataRequestTopic(
                name=scene.topic if name == "" else name, topic_id=topic_id or scene.topic_id
            )
            for name in names
        ]
        return MetadataRequest(topics=requested, allow_auto_topic_creation=scene.version < 4)

    return Request(f"metadata: {name}", versions, request)


METADATA: Final = [
    metadata("a topic", range(14), [""]),
    metadata("a topic twice", range(4, 14), ["", ""]),
    metadata("no topics", range(4, 14), []),
    metadata("an unknown topic", range(4, 14), ["nowhere"]),
    metadata("known and unknown", range(4, 14), ["", "nowhere"]),
    metadata("not a name", range(4, 14), ["not a name"]),
    metadata("an unknown id", range(12, 14), [None], UNKNOWN_ID),
    metadata("an id", range(12, 14), [None], b""),
]

# -- creating, growing, deleting

Creatable = CreateTopicsRequest.CreatableTopic


def create(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    *,
    topic: str | None = None,
    configs: Sequence[tuple[str, str | None]] = (),
    assignments: Sequence[tuple[int, list[int]]] = (),
    times: int = 1,
    validate_only: bool = False,
) -> Request:
    def request(scene: Scene) -> CreateTopicsRequest:
        wanted = Creatable(
            name=scene.unused if topic is None else topic or scene.topic,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs],
            assignments=[
                CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                for index, brokers in assignments
            ],
        )
        return CreateTopicsRequest(timeout_ms=10_000, validate_only=validate_only, topics=[wanted] * times)

    return Request(f"create: {name}", range(2, 8), request, frozenset({"configs"}))


CREATE: Final = [
    create("a topic", 3),
    create("by default", -1, -1),
    create("validated only", 2, validate_only=True),
    create("one that exists", topic=""),
    create("the same twice", times=2),
    create("nothing", times=0),
    *(create(f"named '{name[:20]}'", topic=name) for name in ("a b", " ", "..", "x" * 250, "__cluster_metadata")),
    create("no partitions", 0),
    create("fewer than none", -5),
    create("too many replicas", 1, 2),
    create("no replicas", 1, 0),
    create("fewer replicas than none", 1, -3),
    create("an unknown config", configs=[("no.such", "1")]),
    create("a config that is no number", configs=[("retention.ms", "x")]),
    create("a config that is null", configs=[("retention.ms", None)]),
    create("a list", configs=[("cleanup.policy", "compact,delete")]),
    create("a bad list", configs=[("cleanup.policy", "compact,burn")]),
    create("a level that is too high", configs=[("compression.gzip.level", "77")]),
    create("placed by hand", -1, -1, assignments=[(0, [1]), (1, [1])]),
    create("placed by hand and by number", 2, 1, assignments=[(0, [1])]),
    create("placed with a gap", -1, -1, assignments=[(0, [1]), (2, [1])]),
    create("without replicas", -1, -1, assignments=[(0, [])]),
    create("placed on an unknown broker", -1, -1, assignments=[(0, [7])]),
    create("placed twice on one", -1, -1, assignments=[(0, [1, 1])]),
]


def grow(
    name: str, count: int, *, topic: str = "", assignments: Sequence[list[int]] | None = None, times: int = 1
) -> Request:
    def request(scene: Scene) -> CreatePartitionsRequest:
        placed = None
        if assignments is not None:
            placed = [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=each) for each in assignments]
        wanted = CreatePartitionsRequest.CreatePartitionsTopic(
            name=topic or scene.topic, count=count, assignments=placed
        )
        return CreatePartitionsRequest(timeout_ms=10_000, validate_only=True, topics=[wanted] * times)

    return Request(f"grow: {name}", range(4), request)


GROW: Final = [
    grow("to more", 9),
    grow("to as many", 2),
    grow("to fewer", 1),
    grow("to none", 0),
    grow("to fewer than none", -1),
    grow("an unknown topic", 5, topic="nowhere"),
    grow("not a name", 5, topic="not a name"),
    grow("placed by hand", 3, assignments=[[1]]),
    grow("placed by hand, too few", 4, assignments=[[1]]),
    grow("placed on an unknown broker", 3, assignments=[[9]]),
    grow("placed twice on one", 3, assignments=[[1, 1]]),
    grow("twice", 4, times=2),
    grow("nothing", 4, times=0),
]


def delete(name: str, topics: Sequence[str], topic_id: bytes = NO_ID, versions: range = range(1, 7)) -> Request:
    def request(scene: Scene) -> DeleteTopicsRequest:
        if scene.version < 6:
            return DeleteTopicsRequest(timeout_ms=10_000, topic_names=list(topics))
        states = [DeleteTopicsRequest.DeleteTopicState(name=each or None, topic_id=topic_id) for each in topics]
        return DeleteTopicsRequest(timeout_ms=10_000, topics=states)

    return Request(f"delete: {name}", versions, request)


DELETE_TOPICS: Final = [
    delete("an unknown topic", ["nowhere"]),
    delete("not a name", ["not a name"]),
    delete("nothing", []),
    delete("an unknown id", [""], UNKNOWN_ID, range(6, 7)),
    delete("neither name nor id", [""], NO_ID, range(6, 7)),
    delete("both name and id", ["nowhere"], UNKNOWN_ID, range(6, 7)),
]

# -- configs

Configs = Sequence[tuple[str, str | None]]
Changes = Sequence[tuple[str, int, str | None]]


def describe(name: str, kind: int, resource: str, keys: list[str] | None, **fields: Any) -> Request:
    def request(scene: Scene) -> DescribeConfigsRequest:
        requested = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=resource or scene.topic, configuration_keys=keys
        )
        return DescribeConfigsRequest(resources=[requested], **fields)

    return Request(f"describe configs: {name}", range(1, 5), request)


DESCRIBE: Final = [
    *(describe(key, TOPIC, "", [key]) for key in ("retention.ms", "cleanup.policy", "compression.type", "no.such")),
    *(
        describe(f"{key} with synonyms", TOPIC, "", [key], include_synonyms=True)
        for key in ("segment.bytes", "max.message.bytes", "unclean.leader.election.enable")
    ),
    describe("an unknown topic", TOPIC, "nowhere", None),
    describe("not a name", TOPIC, "not a name", None),
    *(describe(key, BROKER, "1", [key]) for key in ("log.retention.ms", "num.io.threads", "message.max.bytes")),
    describe("a broker, with synonyms", BROKER, "1", ["log.segment.bytes"], include_synonyms=True),
    describe("all brokers", BROKER, "", None),
    describe("another broker", BROKER, "9", None),
    describe("not a broker", BROKER, "x", None),
    describe("no type", 0, "", None),
    describe("an unknown type", 77, "", None),
]


def alter(
    name: str, kind: int, resource: str, configs: Configs, *, is_own: bool = True, validate_only: bool = True
) -> Request:
    def request(scene: Scene) -> AlterConfigsRequest:
        entries = [AlterConfigsRequest.AlterableConfig(name=key, value=value) for key, value in configs]
        requested = AlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=resource or (scene.topic if is_own else ""), configs=entries
        )
        return AlterConfigsRequest(validate_only=validate_only, resources=[requested])

    return Request(f"alter configs: {name}", range(3), request)


ALTER: Final = [
    alter("a topic's", TOPIC, "", [("retention.ms", "1000")]),
    alter("no number", TOPIC, "", [("retention.ms", "x")]),
    alter("null", TOPIC, "", [("retention.ms", None)]),
    alter("an unknown one", TOPIC, "", [("no.such", "x")]),
    alter("one twice", TOPIC, "", [("retention.ms", "1"), ("retention.ms", "2")]),
    alter("of an unknown topic", TOPIC, "nowhere", [("retention.ms", "1")]),
    alter("not a name", TOPIC, "not a name", [("retention.ms", "1")]),
    alter("one that does not change", BROKER, "1", [("node.id", "9")]),
    alter("a broker's, no number", BROKER, "1", [("log.retention.ms", "x")]),
    alter("another broker's", BROKER, "9", [("log.retention.ms", "9")]),
    alter("not a broker's", BROKER, "x", [("log.retention.ms", "9")]),
    alter("of no type", 0, "", []),
    alter("of an unknown type", 77, "", []),
]


def change(name: str, kind: int, resource: str, changes: Changes) -> Request:
    def request(scene: Scene) -> IncrementalAlterConfigsRequest:
        entries = [
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=how, value=value)
            for key, how, value in changes
        ]
        requested = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=resource or scene.topic, configs=entries
        )
        return IncrementalAlterConfigsRequest(validate_only=True, resources=[requested])

    return Request(f"change configs: {name}", range(2), request)


CHANGE: Final = [
    change("set", TOPIC, "", [("retention.ms", SET, "1000")]),
    change("set to no number", TOPIC, "", [("retention.ms", SET, "x")]),
    change("set to null", TOPIC, "", [("retention.ms", SET, None)]),
    change("set an unknown one", TOPIC, "", [("no.such", SET, "x")]),
    change("delete", TOPIC, "", [("retention.ms", DELETE, None)]),
    change("delete an unknown one", TOPIC, "", [("no.such", DELETE, None)]),
    change("append", TOPIC, "", [("cleanup.policy", APPEND, "compact")]),
    change("append what is there", TOPIC, "", [("cleanup.policy", APPEND, "delete")]),
    change("append null", TOPIC, "", [("cleanup.policy", APPEND, None)]),
    change("append to no list", TOPIC, "", [("retention.ms", APPEND, "1")]),
    change("subtract", TOPIC, "", [("cleanup.policy", SUBTRACT, "delete")]),
    change("one twice", TOPIC, "", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]),
    change("an unknown topic's", TOPIC, "nowhere", [("retention.ms", SET, "1")]),
    change("not a name", TOPIC, "not a name", [("retention.ms", SET, "1")]),
    change("one that does not change", BROKER, "1", [("node.id", SET, "9")]),
    change("a broker's, no number", BROKER, "1", [("log.retention.ms", SET, "x")]),
    change("another broker's", BROKER, "9", [("log.retention.ms", SET, "9")]),
    change("of no type", 0, "", []),
]

# -- the cluster

PLACES: Final = frozenset({"log_dir", "total_bytes", "usable_bytes", "partition_size"})


def pages(name: str, topics: Sequence[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Request:
    def request(scene: Scene) -> DescribeTopicPartitionsRequest:
        requested = [DescribeTopicPartitionsRequest.TopicRequest(name=each or scene.topic) for each in topics]
        start = None
        if cursor is not None:
            start = DescribeTopicPartitionsRequest.Cursor(
                topic_name=cursor[0] or scene.topic, partition_index=cursor[1]
            )
        return DescribeTopicPartitionsRequest(topics=requested, response_partition_limit=limit, cursor=start)

    return Request(f"describe partitions: {name}", range(1), request)


def folders(name: str, topic: str, partitions: list[int]) -> Request:
    def request(scene: Scene) -> DescribeLogDirsRequest:
        requested = DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic or scene.topic, partitions=partitions)
        return DescribeLogDirsRequest(topics=[requested])

    return Request(f"log folders: {name}", range(1, 5), request, PLACES)


def move(name: str, topic: str, partitions: list[int], path: str) -> Request:
    def request(scene: Scene) -> AlterReplicaLogDirsRequest:
        requested = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic or scene.topic, partitions=partitions)
        return AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=[requested])]
        )

    return Request(f"move to another folder: {name}", range(1, 3), request)


def resources(name: str, types: list[int]) -> Request:
    return Request(f"who has configs: {name}", range(1, 2), lambda _: ListConfigResourcesRequest(resource_types=types))


def cluster(name: str, versions: range, **fields: Any) -> Request:
    return Request(f"cluster: {name}", versions, lambda _: DescribeClusterRequest(**fields))


CLUSTER: Final = [
    cluster("who it is", range(3)),
    cluster("what is allowed", range(3), include_cluster_authorized_operations=True),
    cluster("its controllers", range(1, 3), endpoint_type=2),
    cluster("something else", range(1, 3), endpoint_type=9),
    pages("a topic", [""]),
    pages("one partition", [""], 1),
    pages("none", [""], 0),
    pages("from the second on", [""], 2000, ("", 1)),
    pages("from before the first on", [""], 2000, ("", -1)),
    pages("twice", ["", ""]),
    pages("an unknown topic", ["nowhere"]),
    pages("not a name", ["not a name"]),
    pages("some", ["", "nowhere", "aaa"]),
    folders("of a topic", "", [0, 1]),
    folders("of an unknown topic", "nowhere", [0]),
    folders("of an unknown partition", "", [9]),
    move("that is not there", "", [0, 1], "/nowhere"),
    move("an unknown topic to one that is not there", "nowhere", [0], "/nowhere"),
    Request("who has configs, before there was a choice", range(1), lambda _: ListConfigResourcesRequest()),
    resources("brokers", [BROKER]),
    resources("groups and client metrics", [GROUP, CLIENT_METRICS]),
    resources("brokers twice", [BROKER, BROKER]),
    resources("something else", [BROKER, 99]),
    resources("of no type", [0]),
]
