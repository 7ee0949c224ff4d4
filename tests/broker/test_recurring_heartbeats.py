"""Signs of life in the same words as before: answered by the short way exactly as by the long one."""

import asyncio
from collections.abc import Callable

import pytest
from broker_scene import Scene, batch, on_broker, produce
from group_members import SESSION_MS, TOPIC, Member, find_coordinator, members, settle
from test_groups_consumer import Consumer

from moldau.broker.network import connection
from moldau.broker.network.recurrence import KNOWN_MAX, Recurrence, Recurring, answer_to
from moldau.model.errors import ErrorCode
from moldau.model.ports import Connection
from moldau.wire import messages

HEARTBEAT = messages.ConsumerGroupHeartbeatRequest


class Short:
    """Counts what goes the short way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        original = answer_to

        def counted(frame: memoryview, known: Recurring) -> bytearray:
            self.taken += 1
            return original(frame, known)

        monkeypatch.setattr(connection, "answer_to", counted)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    return Short(monkeypatch)


async def settled(scene: Scene, count: int = 1) -> list[Member]:
    await scene.create(TOPIC, partitions=2)
    await find_coordinator(await scene.connect())
    everybody = await members(scene, count)
    await settle(everybody, partitions=2)
    return everybody


def sign_of_life(member: Member) -> messages.HeartbeatRequest:
    return messages.HeartbeatRequest(
        group_id=member.group_id, generation_id=member.generation, member_id=member.member_id
    )


@pytest.mark.parametrize("version", range(5))
def test_a_classic_member_hears_the_same_as_on_the_long_way(version: int, short: Short) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        request = sign_of_life(member)
        heard = [await member.talker.ask(version, request) for _ in range(5)]
        assert short.taken == 4
        long_way = await (await scene.connect()).ask(version, request)
        assert short.taken == 4
        assert heard == [long_way] * 5

    on_broker(script)


@pytest.mark.parametrize("version", range(2))
def test_a_member_of_the_new_protocol_hears_the_same_as_on_the_long_way(version: int, short: Short) -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=2)
        talker = await scene.connect()
        await find_coordinator(talker)
        joining = HEARTBEAT(
            group_id="g", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=[TOPIC], topic_partitions=[]
        )
        told = await talker.ask(version, joining)
        owned = [
            HEARTBEAT.TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
            for each in told.assignment.topic_partitions
        ]
        epoch = told.member_epoch
        await talker.ask(version, HEARTBEAT(group_id="g", member_id="m", member_epoch=epoch, topic_partitions=owned))
        bare = HEARTBEAT(group_id="g", member_id="m", member_epoch=epoch, topic_partitions=None)
        heard = [await talker.ask(version, bare) for _ in range(5)]
        assert short.taken == 4
        long_way = await (await scene.connect()).ask(version, bare)
        assert heard == [long_way] * 5
        await scene.create("other")  # the image is another one: the group is looked at again, and all is as it was
        assert await talker.ask(version, bare) == long_way

    on_broker(script)


@pytest.mark.proves("C2", part="the server-side protocol")
def test_a_member_of_the_new_protocol_hears_of_its_new_epoch() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC)
        await scene.create("other")
        talker = await scene.connect()
        await find_coordinator(talker)
        heard = 0
        owned: list[HEARTBEAT.TopicPartitions] = []
        for topics in ([TOPIC], [TOPIC, "other"]):
            joining = HEARTBEAT(
                group_id="g",
                member_id="m",
                member_epoch=heard,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=topics,
                topic_partitions=owned,
            )
            told = await talker.ask(1, joining)
            owned = [
                HEARTBEAT.TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
                for each in told.assignment.topic_partitions
            ]
            assert told.member_epoch > heard
            heard = told.member_epoch
            bare = HEARTBEAT(group_id="g", member_id="m", member_epoch=heard, topic_partitions=None)
            assert [(await talker.ask(1, bare)).member_epoch for _ in range(4)] == [heard] * 4

    on_broker(script)


@pytest.mark.proves("C5")
def test_it_keeps_a_member_alive(short: Short) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        for _ in range(8):
            assert await member.heartbeat() is ErrorCode.NONE
            await asyncio.sleep(SESSION_MS / 1000 / 2)
        assert short.taken == 7
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    on_broker(script)


@pytest.mark.proves("C5")
def test_a_member_hears_of_a_rebalance_in_the_middle_of_its_signs_of_life(short: Short) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        for _ in range(3):
            assert await member.heartbeat() is ErrorCode.NONE
        assert short.taken == 2
        newcomer = Member(await scene.connect())
        joining = asyncio.create_task(newcomer.settle(2))
        while (heard := await member.heartbeat()) is ErrorCode.NONE:
            await asyncio.sleep(0.1)
        assert heard is ErrorCode.REBALANCE_IN_PROGRESS
        await member.settle(2)
        await joining
        assert await member.heartbeat() is ErrorCode.NONE

    on_broker(script)


@pytest.mark.proves("C5")
def test_an_old_sign_of_life_in_a_new_generation_is_refused() -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        before = sign_of_life(member)
        for _ in range(2):
            assert (await member.talker.ask(4, before)).error_code == ErrorCode.NONE
        await member.settle(2)
        answer = await member.talker.ask(4, before)
        assert answer.error_code == ErrorCode.ILLEGAL_GENERATION

    on_broker(script)


@pytest.mark.proves("C5", part="who falls silent is out")
def test_a_classic_member_of_a_consumer_group_that_does_not_join_anew_is_out_in_its_time(short: Short) -> None:
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
        assert short.taken >= 10
        await second.beat()
        began_s = scene.simulation.now_s
        while await member.heartbeat() is not ErrorCode.UNKNOWN_MEMBER_ID:
            assert await first.beat() is await second.beat() is ErrorCode.NONE
            await asyncio.sleep(0.1)
        assert 6.9 < scene.simulation.now_s - began_s < 7.5

    on_broker(script)


def test_signs_of_life_between_other_requests_are_answered_in_order(short: Short) -> None:
    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        talker = member.talker
        asked = [
            talker.begin(4, sign_of_life(member))
            if number % 3
            else talker.begin(12, messages.MetadataRequest(topics=None))
            for number in range(30)
        ]
        answers = await asyncio.gather(*asked)
        assert [type(each) for each in answers] == [
            messages.HeartbeatResponse if number % 3 else messages.MetadataResponse for number in range(30)
        ]
        assert short.taken == 19

    on_broker(script)


@pytest.mark.proves("C5")
def test_an_answer_that_waits_to_be_sent_is_not_changed_by_the_next_one() -> None:
    known = Recurring(lambda _: True, bytearray(12), None)  # type: ignore[arg-type]
    first, second = (answer_to(memoryview(b"\0\x0c\0\4\0\0\0%c" % number), known) for number in (1, 2))
    assert (bytes(first[4:8]), bytes(second[4:8])) == (b"\0\0\0\1", b"\0\0\0\2")


def test_a_connection_remembers_a_bounded_number_of_bounded_requests() -> None:
    recurrence = Recurrence()
    again: Callable[[float], bool] = lambda _: True  # noqa: E731 - the shape is the point
    for number in range(100):
        frame = memoryview(b"\0\x0c\0\4" + bytes(4) + b"%d" % number)
        recurrence.learn(frame, again, [bytes(20)], None)  # type: ignore[arg-type]
        assert recurrence.find(frame) is not None
        assert len(recurrence._known) <= KNOWN_MAX
    large = memoryview(bytes(5000))
    recurrence.learn(large, again, [bytes(20)], None)  # type: ignore[arg-type]
    assert recurrence.find(large) is None
    assert recurrence.find(memoryview(b"\0\x0c")) is None


class Waiting:
    """Whether the broker lets a connection wait, seen from its side."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served: list[connection.ServedConnection] = []
        original = connection.ServedConnection.connected

        def connected(served: connection.ServedConnection, to: Connection) -> None:
            self.served.append(served)
            original(served, to)

        monkeypatch.setattr(connection.ServedConnection, "connected", connected)

    @property
    def newest(self) -> bool:
        found = self.served[-1]._connection
        assert found is not None
        return found.may_wait


@pytest.mark.proves("C5", part="who falls silent is out")
def test_a_connection_for_signs_of_life_may_wait_until_it_has_more_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch)

    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        talker = await scene.connect()
        request = sign_of_life(member)
        for number in range(connection.SIGNS_OF_PATIENCE + 3):
            assert waiting.newest == (number > connection.SIGNS_OF_PATIENCE)  # the first is not known yet
            await talker.ask(4, request)
        assert waiting.newest
        await talker.ask(12, messages.MetadataRequest(topics=None))
        assert not waiting.newest
        await talker.ask(4, request)
        assert not waiting.newest

    on_broker(script)


def test_a_connection_that_produces_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch)

    async def script(scene: Scene) -> None:
        (member,) = await settled(scene)
        talker = await scene.connect()
        assert (await produce(talker, TOPIC, batch(b"x"))).error_code == 0
        for _ in range(3 * connection.SIGNS_OF_PATIENCE):
            await talker.ask(4, sign_of_life(member))
        assert not waiting.newest

    on_broker(script)
