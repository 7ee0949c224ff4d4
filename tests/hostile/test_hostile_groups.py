"""Hostile group requests: each gets a response or ends its connection, and other members are not affected."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, Talker, on_broker
from group_members import TOPIC, Member, committed, find_coordinator, members, subscription
from wire_samples import Samples

from moldau.broker.handlers.table import served_apis
from moldau.model.errors import ErrorCode
from moldau.model.units import MiB
from moldau.wire.messages import OffsetFetchRequest

REQUESTS = 1_500
AT_ONCE = 20
GROUP_APIS = [
    api
    for api in served_apis()
    if api.name in ("FindCoordinator", "OffsetCommit", "OffsetFetch", "OffsetDelete", "Heartbeat")
    or api.name.endswith(("Group", "Groups", "GroupHeartbeat", "GroupDescribe"))
]


class GroupSamples(Samples):
    """Samples that often name an existing group, member or topic."""

    def __init__(self, seed: int, topic_id: bytes) -> None:
        super().__init__(seed)
        self._topic_id = topic_id
        self.words = [
            "g",
            "other",
            TOPIC,
            "",
            "range",
            "uniform",
            "consumer",
            ".*",
            "(",
            "x" * 300,
            "žluťoučký",
            "m-1",
            "m-2",
        ]

    def _primitive(self, kind: str) -> Any:
        if kind == "string" and self.random.random() < 0.95:
            return self.random.choice(self.words)
        if kind == "uuid" and self.random.random() < 0.7:
            return self._topic_id
        if kind == "bytes" and self.random.random() < 0.5:
            return subscription(TOPIC)
        if kind in ("int8", "int16", "int32", "int64") and self.random.random() < 0.8:
            return self.random.choice((0, 1, 2, 3, -1, -2, *((6_000, 60_000) if kind in ("int32", "int64") else ())))
        return super()._primitive(kind)


class Fuzzer:
    """Sends samples on its own connections, and learns assigned member ids."""

    def __init__(self, scene: Scene, samples: GroupSamples) -> None:
        self._scene = scene
        self._samples = samples
        self.responses = 0
        self.left_waiting = 0

    async def run(self) -> None:
        sent = 0
        while sent < REQUESTS:
            talker = await self._scene.connect()
            requested = [self._send(talker) for _ in range(AT_ONCE)]
            sent += len(requested)
            _, waiting = await asyncio.wait(requested, timeout=5)
            self.left_waiting += len(waiting)
            talker.connection.abort()
            for each in await asyncio.gather(*requested, return_exceptions=True):
                self._learn(each)

    def _send(self, talker: Talker) -> "asyncio.Future[Any]":
        api = self._samples.random.choice(GROUP_APIS)
        version = self._samples.random.randint(api.oldest, api.newest)
        return talker.begin(version, self._samples.message(f"{api.name}Request", version))

    def _learn(self, response: Any) -> None:
        if isinstance(response, BaseException):
            return
        self.responses += 1
        member_id = getattr(response, "member_id", "")
        if member_id and member_id not in self._samples.words and len(self._samples.words) < 60:
            self._samples.words.append(member_id)


@pytest.mark.parametrize("seed", range(4))
def test_hostile_group_requests_do_not_affect_a_good_member(seed: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=4)
        await find_coordinator(await scene.connect())
        member = Member(await scene.connect(), group_id="good")
        await member.settle(4)
        fuzzer = Fuzzer(scene, GroupSamples(seed, scene.node.broker.image.topic_id(TOPIC)))
        fuzzing = asyncio.create_task(fuzzer.run())
        while not fuzzing.done():
            assert await member.heartbeat() is ErrorCode.NONE
            await asyncio.sleep(1)
        await fuzzing
        assert scene.node.broker.bugs == 0
        assert fuzzer.responses > REQUESTS / 2
        assert await member.commit({0: 7}) == [ErrorCode.NONE]
        await scene.restart_after_crash()
        talker = await scene.connect()
        assert await committed(talker, [0], "good") == {0: 7}
        for group_id in ("g", "other"):
            requested = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
            response = await talker.ask(8, OffsetFetchRequest(groups=[requested]))
            # a share group by then, perhaps
            assert response.groups[0].error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
        assert scene.node.broker.bugs == 0

    on_broker(script, settings=["group.initial.rebalance.delay.ms=50", "offsets.topic.num.partitions=3"])


@pytest.mark.parametrize(
    ("instance_id", "metadata"),
    [("x" * 32_767, b""), ("i", bytes(40 * MiB))],
    ids=["a long name", "a long subscription"],
)
def test_member_too_large_for_a_record_does_not_affect_others(instance_id: str, metadata: bytes) -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=4)
        await find_coordinator(await scene.connect())
        good, other = await members(scene, 2, "good")
        await good.settle(4)
        waiting = asyncio.create_task(other.join())
        bad = Member(await scene.connect(), group_id="bad", instance_id=instance_id)
        await bad.settle(4)
        again = Member(await scene.connect(), group_id="bad", instance_id=instance_id)
        await again.join(protocols={"range": metadata})
        assert not waiting.done()
        assert await good.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        await asyncio.gather(good.join(), waiting)
        assert other.generation == good.generation

    settings = ["group.initial.rebalance.delay.ms=50", "offsets.topic.num.partitions=1"]
    on_broker(script, settings=[*settings, f"offsets.topic.segment.bytes={MiB}"])
