"""Fetch sessions look only at partitions with news, and miss none of it."""

import asyncio
import random
from typing import Any

import pytest
from broker_scene import Scene, ScriptedAuthorizer, Talker, batch, on_broker, produce

from moldau.broker.access import Client, Operation, Resource
from moldau.broker.partitions.partition import Partition
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.wire.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    FetchRequest,
    FetchResponse,
)

pytestmark = pytest.mark.proves("C1")

VERSION = 12
LONG_MS = 60_000


class Consumer:
    """A client with a fetch session, and the state that a full scan would compare with."""

    def __init__(self, talker: Talker, topic: str, count: int, *, leader_epoch: int = -1) -> None:
        self._talker = talker
        self._topic = topic
        self._leader_epoch = leader_epoch
        self.offsets = dict.fromkeys(range(count), 0)
        self._sent: dict[int, tuple[int, int]] = {}
        self._session_id = 0
        self._epoch = 0

    def wanted(self, indexes: Any) -> list[Any]:
        partitions = [
            FetchRequest.FetchPartition(
                partition=index,
                fetch_offset=self.offsets[index],
                partition_max_bytes=1 << 20,
                current_leader_epoch=self._leader_epoch,
            )
            for index in indexes
        ]
        return [FetchRequest.FetchTopic(topic=self._topic, partitions=partitions)] if partitions else []

    def begin(self, *changed: int, **fields: Any) -> "asyncio.Future[Any]":
        named = self.wanted(self.offsets if self._epoch == 0 else changed)
        request = FetchRequest(
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=named,
            **{"min_bytes": 1, "max_bytes": 1 << 20, **fields},
        )
        self._epoch += 1
        return self._talker.begin(VERSION, request)

    async def fetch(self, *changed: int, **fields: Any) -> dict[int, Any]:
        async with asyncio.timeout(600):
            return self.partitions(await self.begin(*changed, **fields))

    def partitions(self, response: FetchResponse) -> dict[int, Any]:
        assert response.error_code == 0
        self._session_id = response.session_id
        assert self._session_id > 0
        return {each.partition_index: each for topic in response.responses for each in topic.partitions}

    async def news_of_a_full_scan(self) -> dict[int, tuple[int, int, int, int]]:
        """The expected incremental response, from a fetch without a session."""
        request = FetchRequest(session_epoch=-1, min_bytes=0, max_bytes=1 << 20, topics=self.wanted(self.offsets))
        response = await self._talker.ask(VERSION, request)
        news = {}
        for each in response.responses[0].partitions:
            state = each.high_watermark, each.log_start_offset
            if each.error_code or each.records or self._sent.get(each.partition_index) != state:
                news[each.partition_index] = summary(each)
            self._sent[each.partition_index] = (-1, -1) if each.error_code else state
        return news


def summary(each: Any) -> tuple[int, int, int, int]:
    return each.error_code, each.high_watermark, each.log_start_offset, len(each.records)


async def opened(scene: Scene, count: int, **configs: Any) -> Consumer:
    await scene.create("t", count, **configs)
    consumer = Consumer(await scene.connect(), "t", count)
    assert len(await consumer.fetch()) == count
    return consumer


async def delete_records(scene: Scene, index: int, offset: int) -> None:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[partition])
    await (await scene.connect()).ask(2, DeleteRecordsRequest(topics=[topic], timeout_ms=LONG_MS))


def partition_of(scene: Scene, index: int = 0) -> Partition:
    return scene.node.broker.partitions.get("t", index)


@pytest.mark.proves("F4")
def test_incremental_fetch_reads_only_partitions_with_news() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 500)
        meter = partition_of(scene).traffic
        before = meter.fetches
        assert not await consumer.fetch()
        assert meter.fetches == before
        await produce(await scene.connect(), "t", batch(b"a"), partition=77)
        assert set(await consumer.fetch()) == {77}
        assert meter.fetches == before + 1

    on_broker(script)


def test_waiting_fetch_of_a_session_is_completed_by_an_append() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 50)
        waiting = consumer.begin(max_wait_ms=LONG_MS)
        await asyncio.sleep(1)
        assert not waiting.done()
        await produce(await scene.connect(), "t", batch(b"a"), partition=7)
        assert set(consumer.partitions(await waiting)) == {7}

    on_broker(script)


def test_waiting_fetch_counts_the_bytes_of_all_its_partitions() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 3)
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"), partition=0)
        size = len(batch(b"a"))
        waiting = consumer.begin(max_wait_ms=LONG_MS, min_bytes=4 * size)
        for index in (0, 1):
            await produce(talker, "t", batch(b"a"), partition=index)
            await asyncio.sleep(1)
            assert not waiting.done()
        await produce(talker, "t", batch(b"a"), partition=0)
        response = consumer.partitions(await waiting)
        assert {index: len(each.records) for index, each in response.items()} == {0: 3 * size, 1: size}

    on_broker(script)


def test_partition_that_was_not_read_to_its_end_is_read_again() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 2)
        talker = await scene.connect()
        for index in (0, 1):
            await produce(talker, "t", batch(b"a"), partition=index)
        size = len(batch(b"a"))
        first = await consumer.fetch(max_bytes=size)
        second = await consumer.fetch(max_bytes=size)  # the same offsets: the other partition has its turn
        assert sorted(index for response in (first, second) for index, each in response.items() if each.records) == [
            0,
            1,
        ]

    on_broker(script)


def test_session_reports_a_moved_log_start() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 2)
        await produce(await scene.connect(), "t", batch(b"a", b"b"), partition=1)
        await consumer.fetch()
        consumer.offsets[1] = 2
        await consumer.fetch(1)
        await delete_records(scene, 1, 1)
        (found,) = (await consumer.fetch()).values()
        assert (found.partition_index, found.log_start_offset) == (1, 1)
        assert not await consumer.fetch()

    on_broker(script)


def test_session_reports_segments_that_retention_deleted() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 1, retention_ms=1000)
        await produce(await scene.connect(), "t", batch(b"a"))
        await consumer.fetch()
        consumer.offsets[0] = 1
        await consumer.fetch(0)
        await asyncio.sleep(400)
        assert partition_of(scene).log.start_offset == 1
        (found,) = (await consumer.fetch()).values()
        assert found.log_start_offset == 1

    on_broker(script)


def test_session_reports_a_new_leader_epoch() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", 1)
        consumer = Consumer(await scene.connect(), "t", 1, leader_epoch=0)
        await consumer.fetch()
        assert not await consumer.fetch()
        partition = partition_of(scene)
        partition.lead_alone(partition.role.leader_epoch + 1)
        for _ in range(2):  # an error is repeated until the client names the partition again
            (found,) = (await consumer.fetch()).values()
            assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH

    on_broker(script)


def test_waiting_fetch_of_a_session_ends_when_its_topic_is_deleted() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 2)
        waiting = consumer.begin(max_wait_ms=LONG_MS)
        topic = DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=bytes(16))
        await (await scene.connect()).ask(6, DeleteTopicsRequest(topics=[topic], timeout_ms=LONG_MS))
        found = consumer.partitions(await waiting)
        assert {each.error_code for each in found.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    on_broker(script)


class _Revocable(ScriptedAuthorizer):
    may_read = True

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return operation is not Operation.READ or self.may_read


def test_session_sees_a_revoked_authorization() -> None:
    authorizer = _Revocable()

    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 2)
        assert not await consumer.fetch()
        authorizer.may_read = False
        authorizer.generation += 1
        found = await consumer.fetch()
        assert {each.error_code for each in found.values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    on_broker(script, authorizer=authorizer)


def test_forgotten_partition_is_not_watched_any_more() -> None:
    async def script(scene: Scene) -> None:
        consumer = await opened(scene, 1)
        assert partition_of(scene).waiters.watchers
        sessions = scene.node.broker.fetch_sessions
        sessions._end(consumer._session_id)
        assert not partition_of(scene).waiters.watchers
        assert (len(sessions), sessions.partition_count) == (0, 0)

    on_broker(script)


@pytest.mark.proves("F4")
def test_partition_of_an_abandoned_session_is_notified_once() -> None:
    async def script(scene: Scene) -> None:
        await opened(scene, 1)
        talker = await scene.connect()
        assert partition_of(scene).waiters.watchers
        await produce(talker, "t", batch(b"a"))
        assert not partition_of(scene).waiters.watchers

    on_broker(script)


@pytest.mark.parametrize("seed", range(6))
def test_session_finds_the_news_of_a_full_scan(seed: int) -> None:
    """Random changes of a topic; each incremental response is compared with a scan of all partitions."""
    chance = random.Random(seed)

    async def script(scene: Scene) -> None:
        count = 6
        consumer = await opened(scene, count)
        await consumer.news_of_a_full_scan()
        talker = await scene.connect()
        for _ in range(60):
            for _ in range(chance.randrange(3)):
                await change(scene, talker, chance, count)
            read = [index for index in range(count) if chance.random() < 0.3]
            for index in read:
                partition = scene.node.broker.partitions.find("t", index)
                consumer.offsets[index] = 0 if partition is None else partition.high_watermark
            expected = await consumer.news_of_a_full_scan()
            found = await consumer.fetch(*read)
            assert {index: summary(each) for index, each in found.items()} == expected

    on_broker(script)


async def change(scene: Scene, talker: Talker, chance: random.Random, count: int) -> None:
    index = chance.randrange(count)
    partition = scene.node.broker.partitions.find("t", index)
    match chance.randrange(8):
        case 0 if partition is not None and partition.high_watermark:
            await delete_records(scene, index, chance.randrange(partition.high_watermark + 1))
        case 1:
            topic = DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=bytes(16))
            await talker.ask(6, DeleteTopicsRequest(topics=[topic], timeout_ms=LONG_MS))
        case 2:
            created = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=count, replication_factor=1)
            await talker.ask(7, CreateTopicsRequest(topics=[created]))
        case 3 if partition is not None:
            partition.lead_alone(partition.role.leader_epoch + 1)
        case _ if partition is not None:
            await produce(talker, "t", batch(b"a"), partition=index)
    assert partition is None or partition.name == TopicPartition("t", index)
