"""The heartbeat fast path: it responds exactly like the handler."""

import asyncio

import pytest
from broker_scene import Scene, batch, on_broker, produce
from group_members import SESSION_MS, TOPIC, Member, find_coordinator, members, settle
from test_groups_consumer import Consumer

from moldau.broker.fastpath.heartbeat import CACHED_REQUESTS_MAX, CachedHeartbeat, HeartbeatCache, HeartbeatFastPath
from moldau.broker.network import connection
from moldau.model.errors import ErrorCode
from moldau.model.ports import Connection
from moldau.wire import messages

HEARTBEAT = messages.ConsumerGroupHeartbeatRequest


class FastPathCount:
    """Counts the requests that the fast path handles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = HeartbeatFastPath.try_handle

        def try_handle(fast_path: HeartbeatFastPath, frame: memoryview) -> bool:
            is_handled = original(fast_path, frame)
            self.count += is_handled
            return is_handled

        monkeypatch.setattr(HeartbeatFastPath, "try_handle", try_handle)


@pytest.fixture
def fast_path(monkeypatch: pytest.MonkeyPatch) -> FastPathCount:
    return FastPathCount(monkeypatch)


async def settled(scene: Scene, count: int = 1) -> list[Member]:
    await scene.create(TOPIC, partitions=2)
    await find_coordinator(await scene.connect())
    joined = await members(scene, count)
    await settle(joined, partitions=2)
    return joined


def heartbeat_request(member: Member) -> messages.HeartbeatRequest:
    return messages.HeartbeatRequest(
        group_id=member.group_id, generation_id=member.generation, member_id=member.member_id
    )


@pytest.mark.parametrize("version", range(5))
def test_classic_heartbeat_responds_like_the_handler(version: int, fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        request = heartbeat_request(member)
        responses = [await member.talker.ask(version, request) for _ in range(5)]
        assert fast_path.count == 4
        handled = await (await scene.connect()).ask(version, request)
        assert fast_path.count == 4
        assert responses == [handled] * 5

    on_broker(script)


@pytest.mark.parametrize("version", range(2))
def test_consumer_heartbeat_responds_like_the_handler(version: int, fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=2)
        talker = await scene.connect()
        await find_coordinator(talker)
        joining = HEARTBEAT(
            group_id="g", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=[TOPIC], topic_partitions=[]
        )
        response = await talker.ask(version, joining)
        owned = [
            HEARTBEAT.TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
            for each in response.assignment.topic_partitions
        ]
        epoch = response.member_epoch
        await talker.ask(version, HEARTBEAT(group_id="g", member_id="m", member_epoch=epoch, topic_partitions=owned))
        bare = HEARTBEAT(group_id="g", member_id="m", member_epoch=epoch, topic_partitions=None)
        responses = [await talker.ask(version, bare) for _ in range(5)]
        assert fast_path.count == 4
        handled = await (await scene.connect()).ask(version, bare)
        assert responses == [handled] * 5
        await scene.create("other")  # a new image: the group is evaluated again, with the same result
        assert await talker.ask(version, bare) == handled

    on_broker(script)


@pytest.mark.proves("C2", part="the server-side protocol")
def test_consumer_heartbeat_reports_a_new_member_epoch() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC)
        await scene.create("other")
        talker = await scene.connect()
        await find_coordinator(talker)
        epoch = 0
        owned: list[HEARTBEAT.TopicPartitions] = []
        for topics in ([TOPIC], [TOPIC, "other"]):
            joining = HEARTBEAT(
                group_id="g",
                member_id="m",
                member_epoch=epoch,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=topics,
                topic_partitions=owned,
            )
            response = await talker.ask(1, joining)
            owned = [
                HEARTBEAT.TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
                for each in response.assignment.topic_partitions
            ]
            assert response.member_epoch > epoch
            epoch = response.member_epoch
            bare = HEARTBEAT(group_id="g", member_id="m", member_epoch=epoch, topic_partitions=None)
            assert [(await talker.ask(1, bare)).member_epoch for _ in range(4)] == [epoch] * 4

    on_broker(script)


@pytest.mark.proves("C5")
def test_fast_path_extends_the_session(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        for _ in range(8):
            assert await member.heartbeat() is ErrorCode.NONE
            await asyncio.sleep(SESSION_MS / 1000 / 2)
        assert fast_path.count == 7
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    on_broker(script)


@pytest.mark.proves("C5")
def test_repeated_heartbeat_reports_a_rebalance(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        for _ in range(3):
            assert await member.heartbeat() is ErrorCode.NONE
        assert fast_path.count == 2
        newcomer = Member(await scene.connect())
        joining = asyncio.create_task(newcomer.settle(2))
        while (code := await member.heartbeat()) is ErrorCode.NONE:
            await asyncio.sleep(0.1)
        assert code is ErrorCode.REBALANCE_IN_PROGRESS
        await member.settle(2)
        await joining
        assert await member.heartbeat() is ErrorCode.NONE

    on_broker(script)


@pytest.mark.proves("C5")
def test_heartbeat_of_an_old_generation_is_rejected() -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        before = heartbeat_request(member)
        for _ in range(2):
            assert (await member.talker.ask(4, before)).error_code == ErrorCode.NONE
        await member.settle(2)
        response = await member.talker.ask(4, before)
        assert response.error_code == ErrorCode.ILLEGAL_GENERATION

    on_broker(script)


@pytest.mark.proves("C5", part="a silent member is evicted")
def test_classic_member_that_does_not_rejoin_is_evicted_at_its_timeout(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=4)
        talker = await scene.connect()
        await find_coordinator(talker)
        first, second = [Consumer(await scene.connect(), name) for name in ("first", "second")]
        await first.beat()
        member = Member(await scene.connect())
        for _ in range(20):
            if await member.heartbeat() is not ErrorCode.NONE:
                await member.join(rebalance_timeout_ms=7_000, session_timeout_ms=30_000)
                await member.sync()
            await first.acknowledge()
            await asyncio.sleep(0.5)
        assert fast_path.count >= 10
        await second.beat()
        began_s = scene.simulation.now_s
        while await member.heartbeat() is not ErrorCode.UNKNOWN_MEMBER_ID:
            assert await first.beat() is await second.beat() is ErrorCode.NONE
            await asyncio.sleep(0.1)
        assert 6.9 < scene.simulation.now_s - began_s < 7.5

    on_broker(script)


def test_heartbeats_between_other_requests_keep_response_order(fast_path: FastPathCount) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        talker = member.talker
        requested = [
            talker.begin(4, heartbeat_request(member))
            if number % 3
            else talker.begin(12, messages.MetadataRequest(topics=None))
            for number in range(30)
        ]
        responses = await asyncio.gather(*requested)
        assert [type(each) for each in responses] == [
            messages.HeartbeatResponse if number % 3 else messages.MetadataResponse for number in range(30)
        ]
        assert fast_path.count == 19

    on_broker(script)


@pytest.mark.proves("C5")
def test_queued_response_is_not_changed_by_the_next_heartbeat() -> None:
    cached = CachedHeartbeat(lambda _: True, bytearray(12))
    first, second = (cached.response_to(memoryview(b"\0\x0c\0\4\0\0\0%c" % number)) for number in (1, 2))
    assert (bytes(first[4:8]), bytes(second[4:8])) == (b"\0\0\0\1", b"\0\0\0\2")


def test_cache_is_bounded_in_count_and_size() -> None:
    cache, heartbeat = HeartbeatCache(), CachedHeartbeat(lambda _: True, bytearray(20))
    for number in range(100):
        frame = memoryview(b"\0\x0c\0\4" + bytes(4) + b"%d" % number)
        cache.add(frame, heartbeat)
        assert cache.find(frame) is heartbeat
        assert len(cache) <= CACHED_REQUESTS_MAX
    large = memoryview(bytes(5000))
    cache.add(large, heartbeat)
    assert cache.find(large) is None
    assert cache.find(memoryview(b"\0\x0c")) is None


class ReadLate:
    """Whether the newest connection is delay tolerant: read late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served: list[connection.ServedConnection] = []
        original = connection.ServedConnection.connected

        def connected(served: connection.ServedConnection, to: Connection) -> None:
            self.served.append(served)
            original(served, to)

        monkeypatch.setattr(connection.ServedConnection, "connected", connected)

    @property
    def newest(self) -> bool:
        return self.served[-1].transport.may_defer_reads


@pytest.mark.proves("C5", part="a silent member is evicted")
def test_heartbeat_connection_is_read_late_until_another_request_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    read_late = ReadLate(monkeypatch)

    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        talker = await scene.connect()
        request = heartbeat_request(member)
        for number in range(connection.DELAY_TOLERANT_MIN + 3):
            assert read_late.newest == (number > connection.DELAY_TOLERANT_MIN)  # the handler handles the first
            await talker.ask(4, request)
        assert read_late.newest
        await talker.ask(12, messages.MetadataRequest(topics=None))
        assert not read_late.newest
        await talker.ask(4, request)
        assert not read_late.newest

    on_broker(script)


def test_connection_that_produces_is_never_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    read_late = ReadLate(monkeypatch)

    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        talker = await scene.connect()
        assert (await produce(talker, TOPIC, batch(b"x"))).error_code == 0
        for _ in range(3 * connection.DELAY_TOLERANT_MIN):
            await talker.ask(4, heartbeat_request(member))
        assert not read_late.newest

    on_broker(script)
