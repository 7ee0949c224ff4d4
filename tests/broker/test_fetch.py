"""Fetch: offsets, size limits, long poll, fetch sessions."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, fetch, fetch_request, on_broker, produce, produce_request

from moldau.broker.fetch.sessions import EVICTION_MS, FetchSessions
from moldau.model.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
)
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import FetchRequest

pytestmark = pytest.mark.proves("C1")


def values(response: Any) -> list[bytes | None]:
    return [
        record.value for _, records in iterate_batches(bytes(response.records)) for record in iterate_records(records)
    ]


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_from_any_offset_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for value in (b"a", b"b", b"c"):
            await produce(talker, "t", batch(value))
        assert values(await fetch(talker, "t", 0, version)) == [b"a", b"b", b"c"]
        response = await fetch(talker, "t", 2, version)
        assert values(response) == [b"c"]
        assert (response.high_watermark, response.last_stable_offset) == (3, 3)

    on_broker(script)


@pytest.mark.parametrize("version", range(13, 19))
def test_fetch_by_topic_id(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        request = fetch_request("", 0)
        request.topics[0].topic_id = scene.node.broker.image.topics["t"].topic_id
        response = await talker.ask(version, request)
        assert response.responses[0].topic_id == request.topics[0].topic_id
        assert values(response.responses[0].partitions[0]) == [b"a"]
        request.topics[0].topic_id = b"?" * 16
        response = await talker.ask(version, request)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    on_broker(script)


def test_offsets_out_of_range_and_unknown_partitions_are_rejected() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        assert (await fetch(talker, "t", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await fetch(talker, "t", -1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await fetch(talker, "t", 0, partition=5)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await fetch(talker, "nowhere", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(script)


@pytest.mark.parametrize(
    ("epoch", "code"), [(0, 0), (-1, 0), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)], ids=["same", "none", "newer"]
)
def test_fetch_with_another_leader_epoch_is_rejected(epoch: int, code: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        request = fetch_request("t", 0)
        request.topics[0].partitions[0].current_leader_epoch = epoch
        response = await talker.ask(11, request)
        assert response.responses[0].partitions[0].error_code == code

    on_broker(script)


def test_batch_larger_than_max_bytes_is_returned_alone() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for value in (b"a" * 5000, b"b" * 5000):
            await produce(talker, "t", batch(value))
        assert values(await fetch(talker, "t", 0, max_bytes=100)) == [b"a" * 5000]
        assert values(await fetch(talker, "t", 0, max_bytes=20_000)) == [b"a" * 5000, b"b" * 5000]

    on_broker(script)


def test_max_bytes_bounds_the_response_over_partitions() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", 3)
        talker = await scene.connect()
        for partition in range(3):
            await produce(talker, "t", batch(b"x" * 1000), partition=partition)
        wanted = [
            FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=10_000)
            for index in range(3)
        ]
        topics = [FetchRequest.FetchTopic(topic="t", partitions=wanted)]
        response = await talker.ask(11, FetchRequest(min_bytes=1, max_bytes=2500, topics=topics))
        sizes = [len(each.records) for each in response.responses[0].partitions]
        assert [size > 0 for size in sizes] == [True, True, False]

    on_broker(script)


def test_fetch_at_the_end_is_completed_by_an_append() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        reader, writer = await scene.connect(), await scene.connect()
        waiting = reader.begin(11, fetch_request("t", 0, max_wait_ms=30_000))
        await asyncio.sleep(5)
        assert not waiting.done()
        before_s = scene.simulation.now_s
        await produce(writer, "t", batch(b"a"))
        response = await waiting
        assert values(response.responses[0].partitions[0]) == [b"a"]
        assert scene.simulation.now_s - before_s < 1

    on_broker(script)


def test_fetch_waits_for_min_bytes() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        reader, writer = await scene.connect(), await scene.connect()
        waiting = reader.begin(11, fetch_request("t", 0, max_wait_ms=30_000, min_bytes=3000))
        await asyncio.sleep(1)
        await produce(writer, "t", batch(b"a" * 1000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await produce(writer, "t", batch(b"b" * 2000))
        assert len(values((await waiting).responses[0].partitions[0])) == 2

    on_broker(script)


def test_fetch_times_out_with_an_empty_response() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        before_s = scene.simulation.now_s
        assert values(await fetch(talker, "t", 0, max_wait_ms=2000)) == []
        assert 2 <= scene.simulation.now_s - before_s < 4

    on_broker(script)


def test_responses_keep_request_order_while_a_fetch_waits() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        await scene.create("u")
        talker = await scene.connect()
        waiting = talker.begin(11, fetch_request("t", 0, max_wait_ms=5000))
        produced = talker.begin(9, produce_request("u", batch(b"a")))
        await asyncio.sleep(2)
        assert not waiting.done()
        assert not produced.done()
        await produced
        assert waiting.done()

    on_broker(script)


def test_waiting_fetch_is_completed_when_its_topic_is_deleted() -> None:
    async def script(scene: Scene) -> None:
        from moldau.wire.messages import DeleteTopicsRequest

        await scene.create("t")
        reader, other = await scene.connect(), await scene.connect()
        waiting = reader.begin(11, fetch_request("t", 0, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await other.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        response = await waiting
        assert response.responses[0].partitions[0].error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )

    on_broker(script)


class TestSessions:
    """Fetch sessions (KIP-227)."""

    @staticmethod
    async def opened(scene: Scene) -> tuple[Talker, int]:
        await scene.create("t", 2)
        talker = await scene.connect()
        wanted = [
            FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=10_000)
            for index in range(2)
        ]
        request = FetchRequest(
            min_bytes=0, session_epoch=0, topics=[FetchRequest.FetchTopic(topic="t", partitions=wanted)]
        )
        response = await talker.ask(11, request)
        assert response.session_id > 0
        assert len(response.responses[0].partitions) == 2
        return talker, response.session_id

    @staticmethod
    def following(session_id: int, epoch: int, **fields: Any) -> FetchRequest:
        return FetchRequest(min_bytes=0, session_id=session_id, session_epoch=epoch, **fields)

    def test_incremental_fetch_returns_only_changed_partitions(self) -> None:
        async def script(scene: Scene) -> None:
            talker, session_id = await self.opened(scene)
            response = await talker.ask(11, self.following(session_id, 1))
            assert not response.responses
            await produce(talker, "t", batch(b"a"), partition=1)
            response = await talker.ask(11, self.following(session_id, 2))
            (partition,) = response.responses[0].partitions
            assert partition.partition_index == 1
            assert values(partition) == [b"a"]

        on_broker(script)

    def test_incremental_fetch_changes_and_forgets_partitions(self) -> None:
        async def script(scene: Scene) -> None:
            talker, session_id = await self.opened(scene)
            for index in range(2):
                await produce(talker, "t", batch(b"a"), partition=index)
            moved = FetchRequest.FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=10_000)
            response = await talker.ask(
                11,
                self.following(
                    session_id,
                    1,
                    topics=[FetchRequest.FetchTopic(topic="t", partitions=[moved])],
                    forgotten_topics_data=[FetchRequest.ForgottenTopic(topic="t", partitions=[0])],
                ),
            )
            fetched = {each.partition_index: values(each) for topic in response.responses for each in topic.partitions}
            assert fetched == {1: []}

        on_broker(script)

    @pytest.mark.parametrize(
        ("shift", "epoch", "code"),
        [(0, 7, ErrorCode.INVALID_FETCH_SESSION_EPOCH), (1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)],
    )
    def test_invalid_session_id_or_epoch_is_rejected(self, shift: int, epoch: int, code: ErrorCode) -> None:
        async def script(scene: Scene) -> None:
            talker, session_id = await self.opened(scene)
            response = await talker.ask(11, self.following(session_id + shift, epoch))
            assert response.error_code == code

        on_broker(script)

    def test_full_cache_responds_without_a_session(self) -> None:
        async def script(scene: Scene) -> None:
            await self.opened(scene)
            talker = await scene.connect()
            response = await talker.ask(11, fetch_request("t", 0, session_epoch=0, min_bytes=0))
            assert response.session_id == 0
            assert response.error_code == 0

        on_broker(script, settings=["max.incremental.fetch.session.cache.slots=1"])


class _FixedRandom:
    def __init__(self) -> None:
        self._next = 0

    def random(self) -> float:
        return 0.5

    def randrange(self, start: int, stop: int) -> int:  # noqa: ARG002
        self._next += 1
        return self._next

    def randbytes(self, n: int, /) -> bytes:
        return bytes(n)


def _request(partitions: int, **fields: Any) -> FetchRequest:
    wanted = [FetchRequest.FetchPartition(partition=index, fetch_offset=0) for index in range(partitions)]
    return FetchRequest(topics=[FetchRequest.FetchTopic(topic="t", partitions=wanted)], **fields)


def test_idle_session_is_evicted_for_a_new_one() -> None:
    sessions = FetchSessions(_FixedRandom(), 1)
    first = sessions.begin(_request(1, session_epoch=0), uses_topic_ids=False, now_ms=0)
    assert sessions.begin(_request(1, session_epoch=0), uses_topic_ids=False, now_ms=1000).session is None
    late = sessions.begin(_request(1, session_epoch=0), uses_topic_ids=False, now_ms=EVICTION_MS + 1)
    assert late.session is not None
    assert late.session_id != first.session_id
    assert (len(sessions), sessions.evictions) == (1, 1)


def test_small_old_session_is_evicted_for_a_larger_one() -> None:
    sessions = FetchSessions(_FixedRandom(), 1)
    first = sessions.begin(_request(1, session_epoch=0), uses_topic_ids=False, now_ms=0)
    busy = FetchRequest(session_id=first.session_id, session_epoch=1)
    sessions.begin(busy, uses_topic_ids=False, now_ms=EVICTION_MS)
    assert sessions.begin(_request(1, session_epoch=0), uses_topic_ids=False, now_ms=EVICTION_MS + 1).session is None
    assert sessions.begin(_request(5, session_epoch=0), uses_topic_ids=False, now_ms=EVICTION_MS + 1).session


@pytest.mark.parametrize(
    ("fields", "uses_topic_ids", "error"),
    [
        ({"session_id": 99, "session_epoch": 1}, False, FetchSessionIdNotFound),
        ({"session_id": 1, "session_epoch": 2}, False, InvalidFetchSessionEpoch),
        ({"session_id": 1, "session_epoch": 1}, True, FetchSessionTopicIdError),
    ],
)
def test_session_rejects_a_wrong_id_or_epoch(
    fields: dict[str, Any], uses_topic_ids: bool, error: type[KafkaError]
) -> None:
    sessions = FetchSessions(_FixedRandom(), 10)
    sessions.begin(_request(1, session_epoch=0), uses_topic_ids=False, now_ms=0)
    with pytest.raises(error):
        sessions.begin(FetchRequest(**fields), uses_topic_ids=uses_topic_ids, now_ms=1)


def test_final_epoch_closes_the_session() -> None:
    sessions = FetchSessions(_FixedRandom(), 10)
    opened = sessions.begin(_request(1, session_epoch=0), uses_topic_ids=False, now_ms=0)
    sessions.begin(_request(1, session_id=opened.session_id, session_epoch=-1), uses_topic_ids=False, now_ms=1)
    assert len(sessions) == 0
