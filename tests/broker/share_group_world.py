"""A share group on a cluster whose nodes are killed: consumers, and what must hold of every record.

Consumers accept, release or reject the records of two partitions, each with the key of its record. Meanwhile nodes are
killed and started again, and with them leaders of the partitions, of the dead-letter topic and of the state topic.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from broker_scene import fetch, produce
from cluster_scene import Cluster
from share_members import ACCEPT, REJECT, RELEASE, Member

from moldau.model.error_codes import ErrorCode
from moldau.records.builder import build_batch
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import IncrementalAlterConfigsRequest

TOPIC, DEAD_LETTERS = "t", "dlq.t"
PARTITIONS = 2
KEYS = 4
TOPIC_RESOURCE, GROUP_RESOURCE = 2, 32
GROUP_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "10",
    "share.order": "key",
    "share.retry.backoff.ms": "50",
    "errors.deadletterqueue.topic.name": DEAD_LETTERS,
}
QUIET_S = 40  # longer than a lock
RECOVERY_S = 300  # until every record is done after the last kill

Record = tuple[int, int]  # partition and offset


@dataclass
class World:
    """The records as the consumers have seen them."""

    cluster: Cluster
    seed: int
    kinds: dict[Record, int] = field(default_factory=dict)  # the verdict that each record gets in the end
    sent: dict[Record, int] = field(default_factory=dict)  # the last verdict, whether confirmed or not
    confirmed: dict[Record, int] = field(default_factory=dict)  # durable verdicts, other than RELEASE
    deliveries: Counter[Record] = field(default_factory=Counter)
    delivered_s: float = 0.0  # the last time

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def is_done(self) -> bool:
        """Every record has its verdict, and none was delivered again for a while: lost responses are not confirmed."""
        has_verdicts = all(self.sent.get(each) == kind for each, kind in self.kinds.items())
        return has_verdicts and self.cluster.simulation.now_s > self.delivered_s + QUIET_S

    async def configure(self, kind: int, name: str, configs: dict[str, str]) -> None:
        request = IncrementalAlterConfigsRequest
        changes = [request.AlterableConfig(name=key, config_operation=0, value=text) for key, text in configs.items()]
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
        talker = await self.cluster.connect(self.cluster.active)
        response = await talker.ask(1, request(resources=[resource]))
        assert response.responses[0].error_code == 0, response

    async def produce(self, count: int) -> None:
        """Produce so many records to each partition, in batches of four."""
        for index in range(PARTITIONS):
            talker = await self.cluster.connect(self.cluster.leaders(TOPIC)[index])
            now_ms = self.cluster.nodes[self.cluster.active].broker.clock.wall_ms()
            for first in range(0, count, 4):
                offsets = range(first, min(first + 4, count))
                batch = build_batch([(now_ms, b"%d" % (each % KEYS), b"%d" % each, ()) for each in offsets])
                result = await produce(talker, TOPIC, batch, partition=index)
                assert (result.error_code, result.base_offset) == (0, first)
            for offset in range(count):
                self.kinds[index, offset] = REJECT if self.random.random() < 0.3 else ACCEPT

    def acquired(self, record: Record, delivery_count: int) -> int:
        """Check a delivery; return the verdict."""
        assert record not in self.confirmed, f"{record} is delivered again after {self.confirmed[record]}"
        index, offset = record
        earlier = [each for each in range(offset % KEYS, offset, KEYS) if (index, each) not in self.sent]
        assert not earlier, f"{record} is delivered before {earlier}"
        pending = [each for each in range(offset % KEYS, offset, KEYS) if self.sent[index, each] == RELEASE]
        assert not pending, f"{record} is delivered before {pending}, which were released"
        assert delivery_count >= 1
        self.deliveries[record] += 1
        self.delivered_s = self.cluster.simulation.now_s
        is_released = self.deliveries[record] < 3 and self.random.random() < 0.2
        return RELEASE if is_released else self.kinds[record]

    async def kill_nodes(self, count: int) -> None:
        """Kill a random node and start it again, so many times."""
        for _ in range(count):
            await asyncio.sleep(self.random.uniform(0.2, 4))
            killed = self.random.choice(sorted(self.cluster.nodes))
            self.cluster.kill(killed)
            await asyncio.sleep(self.random.uniform(0.5, 5))
            await self.cluster.start(killed)
            await asyncio.sleep(self.random.uniform(1, 3))

    async def letters(self) -> list[Record]:
        """The origins of all dead letters."""
        found: list[Record] = []
        for index in range(PARTITIONS):
            talker = await self.cluster.connect(self.cluster.leaders(DEAD_LETTERS)[index])
            response = await fetch(talker, DEAD_LETTERS, 0, partition=index)
            assert response.error_code == 0
            for _, batch in iterate_batches(bytes(response.records or b"")):
                for record in iterate_records(batch):
                    headers = dict(record.headers)
                    origin = headers["__dlq.errors.partition"], headers["__dlq.errors.offset"]
                    found.append((int(origin[0] or b""), int(origin[1] or b"")))
        return found

    async def until_done(self) -> None:
        async with asyncio.timeout(RECOVERY_S):
            while not self.is_done:
                await asyncio.sleep(0.1)

    async def check_dead_letters(self) -> None:
        """Exactly the rejected records, once each."""
        expected = sorted(each for each, kind in self.kinds.items() if kind == REJECT)
        async with asyncio.timeout(RECOVERY_S):
            while len(await self.letters()) < len(expected):
                await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert sorted(await self.letters()) == expected


class Consumer:
    """A member that visits both partitions in turn, with a session of its own for each."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._sessions = 0
        self._members: dict[int, tuple[int, Member]] = {}  # by partition: leader and session
        self._verdicts: dict[int, dict[int, int]] = {}  # by partition: those to be sent

    async def run(self) -> None:
        while not self._world.is_done:
            for index in range(PARTITIONS):
                try:
                    async with asyncio.timeout(30):
                        await self._visit(index)
                except (OSError, TimeoutError):
                    self._drop(index)
            await asyncio.sleep(0.05)

    def _drop(self, index: int) -> None:
        """The session is lost, and with it the locks; the verdicts may be durable or not."""
        self._verdicts.pop(index, None)
        found = self._members.pop(index, None)
        if found is not None:
            found[1].talker.connection.close()

    async def _member(self, index: int) -> Member:
        cluster = self._world.cluster
        leader = cluster.leaders(TOPIC)[index]
        known = self._members.get(index)
        if known is not None and known[0] == leader:
            return known[1]
        self._drop(index)
        if leader not in cluster.nodes:
            raise ConnectionError("no leader")
        self._sessions += 1
        topic_id = cluster.nodes[leader].broker.image.topics[TOPIC].topic_id
        member = Member(await cluster.connect(leader), topic_id, f"{self._number}-{self._sessions}".ljust(22, "-"))
        self._members[index] = leader, member
        return member

    async def _visit(self, index: int) -> None:
        member = await self._member(index)
        verdicts = self._verdicts.pop(index, {})
        world = self._world
        for offset, kind in verdicts.items():
            world.sent[index, offset] = kind
        acknowledged = [(offset, offset, kind) for offset, kind in sorted(verdicts.items())]
        response = await member.fetch_response(acknowledged, partitions=(index,), max_wait_ms=200, max_records=5)
        if response.error_code:
            raise ConnectionError(ErrorCode(response.error_code).name)
        if not response.responses:
            return
        found = response.responses[0].partitions[0]
        if verdicts and found.acknowledge_error_code == 0 and found.error_code == 0:
            world.confirmed.update({(index, each): kind for each, kind in verdicts.items() if kind != RELEASE})
        self._verdicts[index] = {
            offset: world.acquired((index, offset), each.delivery_count)
            for each in found.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        if found.error_code or (verdicts and found.acknowledge_error_code):
            raise ConnectionError(ErrorCode(found.error_code or found.acknowledge_error_code).name)
