"""Produce requests like the one before: answered by the short way exactly as by the long one."""

from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, on_broker

from moldau.broker.network import repetition
from moldau.broker.network.repetition import Repetition
from moldau.model.errors import ErrorCode
from moldau.wire.messages import (
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ProduceRequest,
)

VERSIONS = range(repetition.OLDEST, 14)


class Short:
    """Counts what goes the short way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        original = Repetition.append

        def counted(known: Repetition, frame: memoryview) -> bool:
            is_done = original(known, frame)
            self.taken += is_done
            return is_done

        monkeypatch.setattr(Repetition, "append", counted)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    return Short(monkeypatch)


async def topic_id(talker: Talker, name: str) -> bytes:
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    answer = await talker.ask(12, MetadataRequest(topics=[wanted]))
    return bytes(answer.topics[0].topic_id)


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


def told(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]


@pytest.mark.proves("P1")
@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_answered_as_on_the_long_way(version: int, short: Short) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        known = await scene.connect()
        known_id = await topic_id(known, "t")
        offset = 0
        for size in (1, 5, 40, 3, 700, 2):
            records = batch(*[b"v" * size] * size)
            answer = await known.ask(version, request(version, records, known_id=known_id))
            assert (told(answer).error_code, told(answer).base_offset) == (0, offset)
            offset += size
            long_way = await (await scene.connect()).ask(version, request(version, records, known_id=known_id))
            told(answer).base_offset = told(long_way).base_offset
            assert answer == long_way
            offset += size
        assert short.taken == 5

    on_broker(script)


@pytest.mark.parametrize("version", [7, 9])
def test_many_at_once_get_their_answers_in_order(version: int, short: Short) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", partitions=3)
        talker = await scene.connect()
        asked = []
        for number in range(60):
            asked.append(talker.begin(version, request(version, batch(b"v"), index=number % 3)))
            if number % 7 == 0:
                asked.append(talker.begin(1, MetadataRequest(topics=[])))
        answers = [await each for each in asked]
        offsets = [told(each).base_offset for each in answers if hasattr(each, "responses")]
        assert offsets == [number // 3 for number in range(60)]
        assert short.taken >= 57

    on_broker(script)


def test_a_batch_that_is_damaged_is_refused_as_on_the_long_way(short: Short) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await talker.ask(9, request(9, batch(b"v")))
        spoiled = bytearray(batch(b"v"))
        spoiled[-1] ^= 1
        assert told(await talker.ask(9, request(9, bytes(spoiled)))).error_code == ErrorCode.CORRUPT_MESSAGE
        assert told(await talker.ask(9, request(9, batch(b"v")))).base_offset == 1
        assert short.taken == 1

    on_broker(script)


@pytest.mark.proves("P2")
def test_sequences_are_checked_on_the_short_way(short: Short) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()

        async def sent(sequence: int) -> Any:
            records = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=sequence)
            return told(await talker.ask(9, request(9, records)))

        assert [(await sent(each)).base_offset for each in (0, 1, 2)] == [0, 1, 2]
        again = await sent(1)
        assert (again.error_code, again.base_offset) == (0, 1)
        gap = await sent(9)
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert gap.base_offset == -1
        assert (await sent(3)).base_offset == 3
        assert short.taken >= 4

    on_broker(script)


def test_a_topic_that_is_deleted_and_made_again_is_another_one(short: Short) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(3):
            await talker.ask(9, request(9, batch(b"v")))
        await talker.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        gone = told(await talker.ask(9, request(9, batch(b"v"))))
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await scene.create("t")
        assert [told(await talker.ask(9, request(9, batch(b"v")))).base_offset for _ in range(3)] == [0, 1, 2]
        assert short.taken == 4

    on_broker(script)


def test_where_every_message_is_synced_from_now_on_it_is_waited_for(short: Short) -> None:
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
        answer = told(await talker.ask(9, request(9, batch(b"v"))))
        assert answer.base_offset == 2
        assert scene.node.broker.partitions.get("t", 0).log.recovery_point == 3
        assert short.taken == 1

    on_broker(script)


def test_requests_of_another_form_are_taken_the_long_way_and_the_known_ones_stay_known(short: Short) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        await scene.create("another")
        talker = await scene.connect()
        for _ in range(10):
            await talker.ask(9, request(9, batch(b"v")))
            await talker.ask(9, request(9, batch(b"v"), name="another"))
        assert short.taken == 9

    on_broker(script)
