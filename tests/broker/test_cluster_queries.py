"""Queries about the cluster: versions, features, brokers, topics, offsets, log dirs, paging."""

import socket
from typing import Any

import pytest
from broker_scene import FRAME_BYTES_MAX, Scene, Talker, batch, fetch, list_offset, on_broker, produce

from moldau.broker.handlers.table import served_apis
from moldau.broker.requests.router import ServedOn
from moldau.model.errors import ErrorCode
from moldau.model.ids import Address
from moldau.testing import Broker
from moldau.wire import messages as m

NOW_MS = 1_700_000_000_000
UNKNOWN_ID = bytes(range(16))


# -- ApiVersions


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_every_served_api_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        request = m.ApiVersionsRequest(client_software_name="tester", client_software_version="1.0")
        response = await talker.ask(version, request)
        assert response.error_code == 0
        listed = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        assert listed == {api.key: api.advertised for api in served_apis() if ServedOn.BROKER in api.served_on}
        assert listed[0][0] == 0  # librdkafka would not compress otherwise
        if version >= 3:
            features = {each.name: each.max_version_level for each in response.finalized_features}
            assert features["metadata.version"] > 0
            assert features["transaction.version"] == 2, "clients let the broker end transactions with a new epoch"
            assert response.finalized_features_epoch >= 0
            supported = {each.name: each.min_version for each in response.supported_features}
            assert "metadata.version" in supported
            assert version > 3 or 0 not in supported.values()  # older clients fail on a minimum of 0
            assert ("kraft.version" in supported) == (version > 3)
            assert features.get("kraft.version", 0) == scene.node.broker.metadata.quorum.machine.kraft_version

    on_broker(script)


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1\n")])
def test_api_versions_rejects_an_invalid_client_name_or_version(name: str, version: str) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        request = m.ApiVersionsRequest(client_software_name=name, client_software_version=version)
        assert (await talker.ask(3, request)).error_code == ErrorCode.INVALID_REQUEST

    on_broker(script)


# -- Metadata


@pytest.mark.parametrize("version", range(14))
def test_metadata_is_served_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=2)
        await scene.create("u")
        talker = await scene.connect()
        everything = m.MetadataRequest(topics=[] if version == 0 else None)
        response = await talker.ask(version, everything)
        assert [(each.node_id, each.host, each.port) for each in response.brokers] == [(1, "broker", 9092)]
        assert [(each.name, len(each.partitions)) for each in response.topics] == [("t", 2), ("u", 1)]
        (first, _) = response.topics[0].partitions
        assert (first.leader_id, list(first.replica_nodes), list(first.isr_nodes)) == (1, [1], [1])
        if version >= 1:
            assert response.controller_id == 1
            assert not response.topics[0].is_internal
            assert list((await talker.ask(version, m.MetadataRequest(topics=[]))).topics) == []
        if version >= 2:
            assert response.cluster_id == scene.node.cluster_id
        if version >= 7:
            assert first.leader_epoch == 0
        if version >= 10:
            assert response.topics[0].topic_id not in (bytes(16), response.topics[1].topic_id)
        requested = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in ("u", "missing")]
        some = await talker.ask(version, m.MetadataRequest(topics=requested, allow_auto_topic_creation=False))
        codes = {each.name: each.error_code for each in some.topics}
        assert codes["u"] == 0
        if version >= 4:  # earlier versions create the requested topic
            assert codes["missing"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(script)


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_is_served_by_topic_id(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        topic_id = scene.node.broker.image.topics["t"].topic_id
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, UNKNOWN_ID)]
        response = await talker.ask(version, m.MetadataRequest(topics=wanted))
        topics = {each.topic_id: (each.name, each.error_code) for each in response.topics}
        assert topics == {topic_id: ("t", 0), UNKNOWN_ID: (None, ErrorCode.UNKNOWN_TOPIC_ID)}

    on_broker(script)


@pytest.mark.proves("A1", part="invalid requests are rejected")
@pytest.mark.parametrize("version", [11, 12, 13])
def test_metadata_rejects_a_null_name_without_an_id(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        requested = m.MetadataRequest.MetadataRequestTopic(name=None)
        response = await talker.ask(version, m.MetadataRequest(topics=[requested]))
        assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST
        assert scene.node.broker.bugs == 0

    on_broker(script)


# -- DescribeCluster, DescribeLogDirs, AlterReplicaLogDirs, ListConfigResources, DescribeTopicPartitions


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        request = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
        response = await talker.ask(version, request)
        assert (response.error_code, response.cluster_id, response.controller_id) == (0, scene.node.cluster_id, 1)
        assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(1, "broker", 9092)]
        assert response.cluster_authorized_operations > 0
        if version >= 1:
            controllers = await talker.ask(version, m.DescribeClusterRequest(endpoint_type=2))
            assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
            unknown = await talker.ask(version, m.DescribeClusterRequest(endpoint_type=9))
            assert unknown.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE

    on_broker(script)


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_log_dirs_reports_the_size_of_each_partition(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=2)
        await scene.create("u")
        talker = await scene.connect()
        written = batch(b"x" * 500)
        await produce(talker, "t", written, partition=1)
        response = await talker.ask(version, m.DescribeLogDirsRequest(topics=None))
        (folder,) = response.results
        sizes = {(each.name, p.partition_index): p.partition_size for each in folder.topics for p in each.partitions}
        assert (folder.error_code, folder.log_dir) == (0, "/data")
        assert sizes == {("t", 0): 0, ("t", 1): len(written), ("u", 0): 0}
        if version >= 4:
            assert 0 < folder.usable_bytes <= folder.total_bytes
        some = m.DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=[1, 7])
        response = await talker.ask(version, m.DescribeLogDirsRequest(topics=[some]))
        assert [p.partition_index for each in response.results[0].topics for p in each.partitions] == [1]

    on_broker(script)


def _moved(path: str, **partitions: list[int]) -> m.AlterReplicaLogDirsRequest:
    requested = m.AlterReplicaLogDirsRequest
    topics = [requested.AlterReplicaLogDirTopic(name=name, partitions=each) for name, each in partitions.items()]
    return requested(dirs=[requested.AlterReplicaLogDir(path=path, topics=topics)])


@pytest.mark.proves("A1")
@pytest.mark.parametrize("version", [1, 2])
def test_alter_replica_log_dirs_accepts_only_the_existing_log_dir(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=2)
        talker = await scene.connect()
        stays = await talker.ask(version, _moved("/data", t=[0, 1, 7], nowhere=[0]))
        goes = await talker.ask(version, _moved("/elsewhere", t=[1]))
        codes = {(each.topic_name, p.partition_index): p.error_code for each in stays.results for p in each.partitions}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {("t", 0): 0, ("t", 1): 0, ("t", 7): unknown, ("nowhere", 0): unknown}
        assert [p.error_code for each in goes.results for p in each.partitions] == [ErrorCode.LOG_DIR_NOT_FOUND]

    on_broker(script)


@pytest.mark.proves("A1")
def test_config_resources_are_listed_by_type() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("u")
        await scene.create("t")
        talker = await scene.connect()
        alter = m.IncrementalAlterConfigsRequest
        interval = alter.AlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=0, value="6000")
        group = alter.AlterConfigsResource(resource_type=32, resource_name="g", configs=[interval])
        assert (await talker.ask(1, alter(resources=[group]))).responses[0].error_code == 0

        async def listed(version: int, *types: int) -> list[tuple[int, str]]:
            response = await talker.ask(version, m.ListConfigResourcesRequest(resource_types=[*types]))
            assert response.error_code == 0
            return [(each.resource_type, each.resource_name) for each in response.config_resources]

        assert await listed(0) == []
        assert await listed(1, 32) == [(32, "g")]
        assert await listed(1, 8, 16) == [(8, "1")]
        change = alter.AlterableConfig(name="metrics", config_operation=0, value="*")
        subscription = alter.AlterConfigsResource(resource_type=16, resource_name="all", configs=[change])
        assert (await talker.ask(1, alter(resources=[subscription]))).responses[0].error_code == 0
        assert await listed(0) == [(16, "all")]
        assert await listed(1) == [(2, "t"), (2, "u"), (4, "1"), (8, "1"), (16, "all"), (32, "g")]
        rejected = await talker.ask(1, m.ListConfigResourcesRequest(resource_types=[2, 3]))
        assert rejected.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert not rejected.config_resources

    on_broker(script)


async def page(talker: Talker, limit: int, cursor: Any = None, *names: str) -> Any:
    return await talker.ask(
        0,
        m.DescribeTopicPartitionsRequest(
            topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor and m.DescribeTopicPartitionsRequest.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        ),
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_describe_topic_partitions_pages_list_each_partition_once(limit: int) -> None:
    async def script(scene: Scene) -> None:
        for name, partitions in (("c", 3), ("a", 2), ("b", 4)):
            await scene.create(name, partitions=partitions)
        talker = await scene.connect()
        seen: list[tuple[str, int]] = []
        cursor = None
        while True:
            response = await page(talker, limit, cursor)
            got = [(each.name, p.partition_index) for each in response.topics for p in each.partitions]
            assert len(got) <= limit
            seen += got
            if response.next_cursor is None:
                break
            cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
        assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("b", 3), ("c", 0), ("c", 1), ("c", 2)]

    on_broker(script)


def test_describe_topic_partitions_reports_unknown_topics() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=2)
        talker = await scene.connect()
        response = await page(talker, 10, None, "missing", "t")
        assert [(each.name, each.error_code) for each in response.topics] == [
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", 0),
        ]
        partition = response.topics[1].partitions[0]
        assert (partition.leader_id, list(partition.isr_nodes)) == (1, [1])
        beyond = await page(talker, 10, ("t", 50), "t")
        assert [len(each.partitions) for each in beyond.topics] in ([0], [])
        rejected = await page(talker, 10, ("t", -1), "t")
        assert rejected.topics[0].error_code == ErrorCode.INVALID_REQUEST

    on_broker(script)


# -- ListOffsets, OffsetForLeaderEpoch

LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SINCE = {LATEST: 1, EARLIEST: 1, NEWEST: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}
FOUND = {
    LATEST: (-1, 5),
    EARLIEST: (-1, 1),
    NEWEST: (NOW_MS + 40, 4),
    EARLIEST_LOCAL: (-1, 1),
    LATEST_TIERED: (-1, -1),
    PENDING_UPLOAD: (-1, -1),
    NOW_MS + 15: (NOW_MS + 20, 2),
    NOW_MS - 999: (NOW_MS + 10, 1),
    NOW_MS + 41: (-1, -1),
}


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("timestamp", list(FOUND))
def test_list_offsets_resolves_every_timestamp_kind_in_every_version(version: int, timestamp: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for index in range(5):
            await produce(talker, "t", batch(b"x", timestamp=NOW_MS + 10 * index))
        below = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
        topic = m.DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[below])
        await talker.ask(2, m.DeleteRecordsRequest(topics=[topic], timeout_ms=1000))
        response = await list_offset(talker, "t", timestamp, version)
        if version < SINCE.get(timestamp, 0):
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
            return
        assert (response.error_code, response.timestamp, response.offset) == (0, *FOUND[timestamp])
        if version >= 4 and response.offset >= 0:
            assert response.leader_epoch == 0

    on_broker(script)


def test_list_offsets_of_an_empty_log() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        offsets = [
            (await list_offset(talker, "t", timestamp)).offset for timestamp in (LATEST, EARLIEST, NEWEST, NOW_MS)
        ]
        assert offsets == [0, 0, -1, -1]
        missing = await list_offset(talker, "missing", LATEST)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(script)


async def epoch_end(talker: Talker, version: int, epoch: int, *, current: int = -1, partition: int = 0) -> Any:
    request = m.OffsetForLeaderEpochRequest
    requested = request.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)
    topic = request.OffsetForLeaderTopic(topic="t", partitions=[requested])
    response = await talker.ask(version, request(replica_id=-2, topics=[topic]))
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(2, 5))
def test_leader_epoch_ends_at_the_log_end_offset(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(3):
            await produce(talker, "t", batch(b"x"))
        response = await epoch_end(talker, version, 0)
        assert (response.error_code, response.leader_epoch, response.end_offset) == (0, 0, 3)
        future = await epoch_end(talker, version, 9)
        assert future.end_offset == -1
        assert (await epoch_end(talker, version, 0, current=4)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        missing = await epoch_end(talker, version, 0, partition=7)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(script)


# Listeners


async def talker_on(scene: Scene, port: int) -> Talker:
    talker = Talker()
    await scene.simulation.network.host("client").connect(Address("broker", port), talker, FRAME_BYTES_MAX)
    return talker


async def addresses_on(scene: Scene, port: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    talker = await talker_on(scene, port)
    metadata = await talker.ask(9, m.MetadataRequest(topics=[]))
    cluster = await talker.ask(0, m.DescribeClusterRequest())
    return [(each.host, each.port) for each in metadata.brokers], [(each.host, each.port) for each in cluster.brokers]


def test_each_listener_advertises_its_own_address() -> None:
    async def script(scene: Scene) -> None:
        inside, outside = ("broker", 9092), ("public.example.org", 19093)
        assert await addresses_on(scene, 9092) == ([inside], [inside])
        assert await addresses_on(scene, 9093) == ([outside], [outside])
        await scene.create("t")
        one, other = await talker_on(scene, 9092), await talker_on(scene, 9093)
        assert (await produce(one, "t", batch(b"a"))).error_code == 0
        assert (await fetch(other, "t", 0)).high_watermark == 1

    on_broker(
        script,
        settings=[
            "listeners=IN://broker:9092,OUT://broker:9093",
            "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT",
            "advertised.listeners=IN://broker:9092,OUT://public.example.org:19093",
            "inter.broker.listener.name=IN",
        ],
    )


@pytest.mark.parametrize(
    ("listeners", "host"),
    [
        (["listeners=PLAINTEXT://0.0.0.0:9092"], "localhost"),
        (["listeners=PLAINTEXT://[::]:9092"], "localhost"),
        (["listeners=PLAINTEXT://:9092"], "localhost"),
        (["listeners=PLAINTEXT://:9092", "advertised.listeners=PLAINTEXT://[2001:db8::1]:9092"], "2001:db8::1"),
    ],
)
def test_wildcard_listener_address_is_never_advertised(listeners: list[str], host: str) -> None:
    async def script(scene: Scene) -> None:
        assert await addresses_on(scene, 9092) == ([(host, 9092)], [(host, 9092)])

    on_broker(script, settings=listeners)


def test_broker_listens_on_an_ipv6_address() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with Broker(listen="[::1]:0") as broker:
        assert broker.bootstrap_servers.startswith("[::1]:")
        broker.create_topic("t")
        with broker.client() as client:
            assert client is not None
