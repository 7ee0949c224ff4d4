"""The Produce fast path: it responds exactly like the handler."""

from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, on_broker

from moldau.broker.fastpath import produce as produce_fast_path
from moldau.broker.fastpath.produce import ProduceFastPath
from moldau.model.errors import ErrorCode
from moldau.wire.messages import (
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ProduceRequest,
)

VERSIONS = range(produce_fast_path.OLDEST, 14)


class FastPathCount:
    """Counts the requests that the fast path handles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = ProduceFastPath.try_handle

        def try_handle(fast_path: ProduceFastPath, frame: memoryview) -> bool:
            is_handled = original(fast_path, frame)
            self.count += is_handled
            return is_handled

        monkeypatch.setattr(ProduceFastPath, "try_handle", try_handle)


@pytest.fixture
def fast_path(monkeypatch: pytest.MonkeyPatch) -> FastPathCount:
    return FastPathCount(monkeypatch)


async def topic_id(talker: Talker, name: str) -> bytes:
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    response = await talker.ask(12, MetadataRequest(topics=[wanted]))
    return bytes(response.topics[0].topic_id)


def request(
    version: int, records: bytes | bytearray, *, index: int = 0, name: str = "t", known_id: bytes = bytes(16)
) -> Any:
    data = ProduceRequest.PartitionProduceData(index=index, records=records)
    topic = ProduceRequest.TopicProduceData(partition_data=[data])
    if version >= 13:
        topic.topic_id = known_id
    else:
        topic.name = name
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def partition_response(response: Any) -> Any:
    return response.responses[0].partition_responses[0]


@pytest.mark.proves("P1")
@pytest.mark.parametrize("version", VERSIONS)
def test_fast_path_responds_like_the_handler(version: int, fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        known = await scene.connect()
        known_id = await topic_id(known, "t")
        offset = 0
        for size in (1, 5, 40, 3, 700, 2):
            records = batch(*[b"v" * size] * size)
            response = await known.ask(version, request(version, records, known_id=known_id))
            assert (partition_response(response).error_code, partition_response(response).base_offset) == (0, offset)
            offset += size
            handled = await (await scene.connect()).ask(version, request(version, records, known_id=known_id))
            partition_response(response).base_offset = partition_response(handled).base_offset
            assert response == handled
            offset += size
        assert fast_path.count == 5

    on_broker(script)


@pytest.mark.parametrize("version", [7, 9])
def test_pipelined_requests_get_responses_in_order(version: int, fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=3)
        talker = await scene.connect()
        requested = []
        for number in range(60):
            requested.append(talker.begin(version, request(version, batch(b"v"), index=number % 3)))
            if number % 7 == 0:
                requested.append(talker.begin(1, MetadataRequest(topics=[])))
        responses = [await each for each in requested]
        offsets = [partition_response(each).base_offset for each in responses if hasattr(each, "responses")]
        assert offsets == [number // 3 for number in range(60)]
        assert fast_path.count >= 57

    on_broker(script)


def test_corrupt_batch_is_rejected_as_by_the_handler(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await talker.ask(9, request(9, batch(b"v")))
        spoiled = bytearray(batch(b"v"))
        spoiled[-1] ^= 1
        assert (
            partition_response(await talker.ask(9, request(9, bytes(spoiled)))).error_code == ErrorCode.CORRUPT_MESSAGE
        )
        assert partition_response(await talker.ask(9, request(9, batch(b"v")))).base_offset == 1
        assert fast_path.count == 2, "both paths call the same function to accept a batch"

    on_broker(script)


@pytest.mark.proves("P2")
def test_fast_path_checks_sequences(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()

        async def sent(sequence: int) -> Any:
            records = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=sequence)
            return partition_response(await talker.ask(9, request(9, records)))

        assert [(await sent(each)).base_offset for each in (0, 1, 2)] == [0, 1, 2]
        again = await sent(1)
        assert (again.error_code, again.base_offset) == (0, 1)
        gap = await sent(9)
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert gap.base_offset == -1
        assert (await sent(3)).base_offset == 3
        assert fast_path.count >= 4

    on_broker(script)


def test_recreated_topic_is_not_served_from_the_cache(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(3):
            await talker.ask(9, request(9, batch(b"v")))
        await talker.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        gone = partition_response(await talker.ask(9, request(9, batch(b"v"))))
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await scene.create("t")
        assert [partition_response(await talker.ask(9, request(9, batch(b"v")))).base_offset for _ in range(3)] == [
            0,
            1,
            2,
        ]
        assert fast_path.count == 4

    on_broker(script)


def test_fast_path_stops_when_flush_messages_becomes_one(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(2):
            await talker.ask(9, request(9, batch(b"v")))
        change = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=2,
            resource_name="t",
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(name="flush.messages", config_operation=0, value="1")
            ],
        )
        await talker.ask(1, IncrementalAlterConfigsRequest(resources=[change]))
        response = partition_response(await talker.ask(9, request(9, batch(b"v"))))
        assert response.base_offset == 2
        assert scene.node.broker.partitions.get("t", 0).log.recovery_point == 3
        assert fast_path.count == 1

    on_broker(script)


def test_requests_of_another_shape_fall_back_and_keep_the_cache(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        await scene.create("another")
        talker = await scene.connect()
        for _ in range(10):
            await talker.ask(9, request(9, batch(b"v")))
            await talker.ask(9, request(9, batch(b"v"), name="another"))
        assert fast_path.count == 9

    on_broker(script)
