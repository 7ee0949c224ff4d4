"""Well-formed requests for far too much: bounded, handled in time slices, and rejected with an error code."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, batch, fetch_request, list_offset, on_broker, produce, produce_request

from moldau.broker.fetch import sessions as sessions_module
from moldau.broker.handlers import auto_create
from moldau.broker.partitions import log_maintenance as upkeep_module
from moldau.broker.partitions import record_validation as inspection_module
from moldau.broker.runtime.time_slice import STEPS_MAX, TimeSlice
from moldau.model.errors import ErrorCode
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import read_header
from moldau.wire import messages as m
from moldau.wire.limits import REQUEST_ELEMENTS_MAX

NOW_MS = 1_760_000_000_000
MANY = 20_000


def list_offsets(count: int, timestamp: int = -1) -> m.ListOffsetsRequest:
    requested = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return m.ListOffsetsRequest(
        replica_id=-1, topics=[m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[requested] * count)]
    )


def fetch_many(count: int, **fields: Any) -> m.FetchRequest:
    partitions = [m.FetchRequest.FetchPartition(partition=index, partition_max_bytes=1000) for index in range(count)]
    return m.FetchRequest(topics=[m.FetchRequest.FetchTopic(topic="t", partitions=partitions)], **fields)


def named_often(count: int) -> m.MetadataRequest:
    return m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name="t")] * count, allow_auto_topic_creation=False
    )


def settings_often(count: int) -> m.DescribeConfigsRequest:
    requested = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=None
    )
    return m.DescribeConfigsRequest(resources=[requested] * count, include_documentation=True, include_synonyms=True)


@pytest.mark.parametrize(
    ("version", "request_of"), [(7, list_offsets), (11, fetch_many), (9, named_often), (4, settings_often)]
)
def test_more_elements_than_the_bound_close_the_connection(
    caplog: pytest.LogCaptureFixture, version: int, request_of: Any
) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        with pytest.raises(ConnectionResetError):
            await talker.ask(version, request_of(REQUEST_ELEMENTS_MAX + 1))

    on_broker(script)
    assert f"{REQUEST_ELEMENTS_MAX + 1} elements" in caplog.text


@pytest.mark.parametrize(
    ("version", "request_of"), [(7, list_offsets), (7, lambda count: list_offsets(count, 5)), (11, fetch_many)]
)
def test_request_for_many_partitions_yields_to_others(
    monkeypatch: pytest.MonkeyPatch, version: int, request_of: Any
) -> None:
    turns = []
    take_turn = TimeSlice.next

    async def count(turn: TimeSlice) -> None:
        turns.append(turn)
        await take_turn(turn)

    monkeypatch.setattr(TimeSlice, "next", count)

    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        begun_at: list[int] = []

        async def handle(request: Any, context: Any) -> m.ApiVersionsResponse:  # noqa: ARG001
            begun_at.append(len(turns))
            return m.ApiVersionsResponse()

        scene.node.routers.broker.apis[18].handle = handle
        sent: list[Any] = []
        with monkeypatch.context() as gathered:
            gathered.setattr(talker.connection, "send", sent.extend)
            large = talker.begin(version, request_of(MANY))
            behind = talker.begin(0, m.ApiVersionsRequest())
        talker.connection.send([b"".join(sent)])  # so that both have arrived when the first starts
        await large
        assert len(turns) >= MANY // STEPS_MAX
        await behind
        assert begun_at == [len(turns)]  # not before the large one was done

    on_broker(script)


def test_topic_or_resource_named_repeatedly_is_described_once() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=50)
        talker = await scene.connect()
        response = await talker.ask(9, named_often(MANY))
        assert [len(topic.partitions) for topic in response.topics] == [50]
        described = await talker.ask(4, settings_often(MANY))
        assert len(described.results) == 1

    on_broker(script)


def test_excessive_partitions_and_assignments_are_rejected_early() -> None:
    topic, assignment = m.CreateTopicsRequest.CreatableTopic, m.CreateTopicsRequest.CreatableReplicaAssignment
    assignments = [assignment(partition_index=index, broker_ids=[1]) for index in range(MANY)]
    wanted = [
        topic(name="a", num_partitions=1_000_000, replication_factor=1),
        topic(name="b", num_partitions=2**31 - 1, replication_factor=1),
        topic(name="c", num_partitions=-1, replication_factor=-1, assignments=assignments),
    ]

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        for each in wanted:
            response = await talker.ask(7, m.CreateTopicsRequest(topics=[each]))
            assert response.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        many = [topic(name=f"t{index}", num_partitions=0, replication_factor=1) for index in range(MANY)]
        response = await talker.ask(7, m.CreateTopicsRequest(topics=many))
        assert {each.error_code for each in response.topics} == {ErrorCode.POLICY_VIOLATION}
        assert scene.node.broker.image.topics == {}
        await scene.create("t")
        growth = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=1_000_000, assignments=None)
        grown = await talker.ask(3, m.CreatePartitionsRequest(topics=[growth]))
        assert grown.results[0].error_code == ErrorCode.POLICY_VIOLATION

    on_broker(script)


def test_altered_resources_and_deleted_topics_are_bounded() -> None:
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        many = [resource(resource_type=2, resource_name=f"t{index}", configs=[]) for index in range(MANY)]
        altered = await talker.ask(1, m.IncrementalAlterConfigsRequest(resources=many))
        assert {each.error_code for each in altered.responses} == {ErrorCode.POLICY_VIOLATION}
        deleted = await talker.ask(5, m.DeleteTopicsRequest(topic_names=[f"t{index}" for index in range(MANY)]))
        assert {each.error_code for each in deleted.responses} == {ErrorCode.POLICY_VIOLATION}

    on_broker(script)


def test_partitions_are_limited_by_the_open_file_limit() -> None:
    async def script(scene: Scene) -> None:
        scene.node.broker.partitions_max = 10
        talker = await scene.connect()
        await scene.create("t", partitions=8)
        topic = m.CreateTopicsRequest.CreatableTopic(name="u", num_partitions=3, replication_factor=1)
        response = (await talker.ask(7, m.CreateTopicsRequest(topics=[topic]))).topics[0]
        assert response.error_code == ErrorCode.POLICY_VIOLATION
        assert "allows 10" in response.error_message
        growth = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=11, assignments=None)
        grown = await talker.ask(3, m.CreatePartitionsRequest(topics=[growth]))
        assert grown.results[0].error_code == ErrorCode.POLICY_VIOLATION
        requested = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in ("t", "a", "b", "c")]
        response = await talker.ask(9, m.MetadataRequest(topics=requested))
        assert [each.error_code for each in response.topics] == [0, *[ErrorCode.POLICY_VIOLATION] * 3]

    on_broker(script)


def test_auto_creation_of_thousands_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_create, "TOPICS_PER_REQUEST_MAX", 20)

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        requested = [m.MetadataRequest.MetadataRequestTopic(name=f"t{index}") for index in range(5000)]
        response = await talker.ask(9, m.MetadataRequest(topics=requested, allow_auto_topic_creation=True))
        codes = [topic.error_code for topic in response.topics]
        assert codes == [0] * 20 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 4980
        rejected = await talker.ask(9, produce_request("unknown", batch(b"a")))
        code = rejected.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(scene.node.broker.image.topics) == 20

    on_broker(script)


# Fetches


@pytest.mark.parametrize("adds_later", [False, True])
def test_partitions_of_fetch_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch, adds_later: bool) -> None:
    monkeypatch.setattr(sessions_module, "PARTITIONS_MAX", 100)

    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        held = scene.node.broker.fetch_sessions
        for _ in range(20):
            response = await talker.ask(11, fetch_many(30, session_id=0, session_epoch=0))
            assert held.partition_count <= 100
        assert response.session_id == 0  # served all the same
        assert len(response.responses[0].partitions) == 30
        if adds_later:
            session = next(iter(held._sessions.values()))
            rejected = await talker.ask(11, fetch_many(99, session_id=session.session_id, session_epoch=1))
            assert rejected.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert session.session_id not in held._sessions

    on_broker(script)


def test_flood_of_fetch_sessions_is_bounded_by_the_cache() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(300):
            await talker.ask(11, fetch_many(1, session_id=0, session_epoch=0))
        assert len(scene.node.broker.fetch_sessions) == 50

    on_broker(script, settings=["max.incremental.fetch.session.cache.slots=50"])


def test_waiting_fetches_of_many_partitions_weigh_more() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=200)
        talker = await scene.connect()
        waits = [talker.begin(11, fetch_many(200, max_wait_ms=10_000, min_bytes=1)) for _ in range(100)]
        await asyncio.sleep(1)
        waiting = len(scene.node.broker.partitions.get("t", 0).waiters.watchers)
        assert 20 < waiting < 40  # not the 100 that fetches of one partition might be
        talker.connection.close()
        await asyncio.gather(*waits, return_exceptions=True)

    on_broker(script)


# Batches


def long_batch(count: int, codec: Compression = Compression.NONE, key: bytes | None = b"k", **fields: Any) -> bytearray:
    return build_batch([(NOW_MS + index % 3, key, b"value", ()) for index in range(count)], compression=codec, **fields)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("configs", [{"cleanup_policy": "compact"}, {"compression_type": "lz4"}])
def test_long_batch_is_validated_concurrently_and_appended_in_order(
    codec: Compression, configs: dict[str, Any]
) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", **configs)
        talker, other = await scene.connect(), await scene.connect()
        first = talker.begin(9, produce_request("t", long_batch(9000, codec)))
        second = talker.begin(9, produce_request("t", batch(b"small", key=b"k")))
        assert (await other.ask(0, m.ApiVersionsRequest())).error_code == 0
        if configs.get("compression_type") != codec.name.lower():
            assert not first.done()
        offsets = [(await each).responses[0].partition_responses[0].base_offset for each in (first, second)]
        assert offsets == [0, 9000]
        stored = scene.node.broker.partitions.get("t", 0).log.read_bytes(0, 1 << 30, until_offset=9000)
        wanted = Compression.LZ4 if "compression_type" in configs else codec
        assert read_header(stored).compression == wanted

    on_broker(script)


REJECTED_LATE = (
    (long_batch(9000, key=None), ErrorCode.INVALID_RECORD),
    (long_batch(9000, Compression.ZSTD, key=None), ErrorCode.INVALID_RECORD),
    (long_batch(9000)[:-100] + bytes(100), ErrorCode.CORRUPT_MESSAGE),
)


@pytest.mark.parametrize(("records", "code"), REJECTED_LATE)
def test_long_batch_with_invalid_records_is_rejected(records: bytearray, code: ErrorCode) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", cleanup_policy="compact")
        talker = await scene.connect()
        assert (await produce(talker, "t", records)).error_code == code
        assert (await produce(talker, "t", batch(b"a", key=b"k"))).base_offset == 0
        assert scene.node.broker.record_validator._held_bytes == 0

    on_broker(script)


def test_long_batch_without_max_timestamp_gets_it() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        records = long_batch(9000)
        records[35:43] = b"\xff" * 8
        from moldau.records.header import write_checksum

        write_checksum(records, 0, len(records))
        assert (await produce(talker, "t", records)).error_code == ErrorCode.NONE
        assert (await list_offset(talker, "t", -3)).timestamp == NOW_MS + 2

    on_broker(script)


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}])
def test_decompression_bomb_is_rejected_as_too_large(topic: dict[str, Any]) -> None:
    bomb = build_batch([(NOW_MS, b"k", bytes(40 << 20), ())], compression=Compression.ZSTD)
    assert len(bomb) < 10_000

    async def script(scene: Scene) -> None:
        await scene.create("t", **topic)
        talker = await scene.connect()
        assert (await produce(talker, "t", bytearray(bomb))).error_code == ErrorCode.MESSAGE_TOO_LARGE

    on_broker(script)


def test_unvalidated_bomb_does_not_harm_timestamp_lookups() -> None:
    bomb = build_batch([(NOW_MS, b"k", bytes(40 << 20), ())], compression=Compression.ZSTD)

    async def script(scene: Scene) -> None:
        await scene.create("t", moldau_record_validation="header")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a", timestamp=NOW_MS - 10))
        assert (await produce(talker, "t", bytearray(bomb))).base_offset == 1
        found = await list_offset(talker, "t", NOW_MS)
        assert (found.error_code, found.offset) == (0, 1)

    on_broker(script)


def test_bytes_waiting_for_validation_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection_module, "HELD_BYTES_MAX", 300_000)

    async def script(scene: Scene) -> None:
        await scene.create("t", cleanup_policy="compact")
        records = long_batch(9000)
        talkers = [await scene.connect() for _ in range(6)]
        requested = [talker.begin(9, produce_request("t", bytearray(records))) for talker in talkers]
        codes = [(await each).responses[0].partition_responses[0].error_code for each in requested]
        assert sorted(set(codes)) == [0, ErrorCode.REQUEST_TIMED_OUT]
        assert (await produce(talkers[0], "t", records)).error_code == 0

    on_broker(script)


# Producers


def test_flood_of_producer_ids_is_cheap_and_unique() -> None:
    async def script(scene: Scene) -> None:
        talkers = [await scene.connect() for _ in range(3)]
        before = scene.node.broker.metadata.next_offset
        requested = [talker.begin(4, m.InitProducerIdRequest()) for talker in talkers for _ in range(1000)]
        responses = await asyncio.gather(*requested)
        assert len({response.producer_id for response in responses}) == 3000
        assert scene.node.broker.metadata.next_offset - before <= 4

    on_broker(script)


def test_producers_of_all_logs_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "PRODUCERS_MAX", 100)

    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=3)
        talker = await scene.connect()
        for producer_id in range(300):
            sent = batch(
                b"a", producer_id=producer_id, producer_epoch=0, base_sequence=0, timestamp=NOW_MS + producer_id
            )
            await produce(talker, "t", sent, partition=producer_id % 3)
        await asyncio.sleep(30)
        kept = [each.log.producers.by_id for each in scene.node.broker.partitions.all() if each.name.topic == "t"]
        assert sum(map(len, kept)) <= 100
        assert any(299 in each for each in kept)
        fetched = await talker.ask(11, fetch_request("t", 0))
        assert fetched.error_code == 0

    on_broker(script)
