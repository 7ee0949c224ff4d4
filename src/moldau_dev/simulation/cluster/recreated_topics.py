"""Topics that an administrator makes, ends and makes again under their names, and who holds the cluster to them.

A name means several topics in the course of a run, so what was acknowledged is known by the id of its topic: it must be
there, at its offset, as long as nobody has asked to delete just that one.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from moldau.client import requests
from moldau.client.errors import STALE_METADATA, check
from moldau.client.leader_requests import partitions_of, version_limit
from moldau.client.metadata import TopicView
from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address, TopicId
from moldau.model.ports import Ports
from moldau.model.protocol import ACKS_ALL
from moldau.records.builder import build_batch
from moldau.records.record import iterate_batches, iterate_records
from moldau_dev.simulation.workload import Ledger, Violation, client

ERRANDS: Final = ("errand-0", "errand-1", "errand-2", "errand-3")
PAUSE_S_MAX: Final = 0.3
FETCH_BYTES_MAX: Final = 100_000

Place = tuple[TopicId, int]  # a partition, by the id of its topic


@dataclass(slots=True)
class ErrandLedger:
    """What was acknowledged to these topics, and which of them were asked to be deleted."""

    sent: list[Place] = field(default_factory=list)  # where each number was sent, once
    answered: int = 0
    given_up: set[TopicId] = field(default_factory=set)  # from before anybody is asked to delete them
    numbers: dict[Place, dict[int, int]] = field(default_factory=dict)  # at their offsets
    names: dict[TopicId, str] = field(default_factory=dict)

    def end_offset(self, place: Place) -> int:
        """Above all that was acknowledged by now."""
        return max(self.numbers.get(place, {}), default=-1) + 1

    def acknowledge(self, topic: TopicView, partition: int, offset: int, number: int, *, since_offset: int) -> None:
        """`since_offset`: above all that was acknowledged before this was sent."""
        place = topic.topic_id, partition
        known = self.numbers.setdefault(place, {})
        self.names[topic.topic_id] = topic.name
        if offset < since_offset or offset in known:
            raise Violation(f"{self.describe(place)}: {number} is at offset {offset}, others were before it: {known}")
        known[offset] = number
        self.answered += 1

    def check_topics(self, image: MetadataImage) -> None:
        """Every topic with something in it is there, unless somebody wanted it to go."""
        there = {topic.topic_id: topic for topic in image.topics.values()}
        for place in self.numbers:
            topic_id, partition = place
            is_there = topic_id in there and partition < len(there[topic_id].partitions)
            if topic_id not in self.given_up and not is_there:
                raise Violation(f"{self.describe(place)} is gone, and nobody has asked for it")

    def check_read(self, place: Place, read: list[int]) -> None:
        """What is in a partition, from its first offset on: all that was acknowledged, and nothing of a namesake's."""
        for number in read:
            if self.sent[number] != place or read.count(number) > 1:
                raise Violation(
                    f"{self.describe(place)} has {number}, sent once and to {self.describe(self.sent[number])}"
                )
        for offset, number in self.numbers.get(place, {}).items():
            if offset >= len(read) or read[offset] != number:
                there = read[offset] if offset < len(read) else "nothing"
                raise Violation(f"{self.describe(place)}: {number} was acknowledged at {offset}, {there} is there")

    def living(self, image: MetadataImage) -> Iterator[TopicImage]:
        """Those that nobody has asked to delete."""
        for name in ERRANDS:
            topic = image.topics.get(name)
            if topic is not None and topic.topic_id not in self.given_up:
                yield topic

    def describe(self, place: Place) -> str:
        topic_id, partition = place
        return f"{self.names.get(topic_id)}-{partition} ({topic_id.hex()})"


class ErrandWriter:
    """Sends numbers, each once, and notes which are acknowledged by all replicas in sync, and where."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], errands: ErrandLedger, ledger: Ledger, chance: random.Random
    ) -> None:
        self._ports, self._errands, self._ledger, self._chance = ports, errands, ledger, chance
        self._client = client(ports, bootstrap, "errand-writer")

    async def run(self, goes_on: Callable[[], bool], image: Callable[[], MetadataImage]) -> None:
        """To any of the topics, as long as it goes on."""
        async with self._client:
            while goes_on():
                await asyncio.sleep(self._chance.uniform(0.0, PAUSE_S_MAX))
                topics = list(self._errands.living(image()))
                if topics:
                    topic = self._chance.choice(topics)
                    await self._write(topic.name, self._chance.randrange(len(topic.partitions)))

    async def audit(self, image: Callable[[], MetadataImage]) -> None:
        """When all has healed: every partition takes one number more, and has what was acknowledged."""
        async with self._client:
            for topic in list(self._errands.living(image())):
                for partition in range(len(topic.partitions)):
                    while not await self._write(topic.name, partition):
                        pass
                    place = topic.topic_id, partition
                    self._errands.check_read(place, await self._read(topic.name, place))
            self._errands.check_topics(image())

    async def _write(self, name: str, partition: int) -> bool:
        """Whether it is acknowledged; else it may be there or not."""
        try:
            topic = await self._client.topic(name)
            since_offset = self._errands.end_offset((topic.topic_id, partition))
            number = len(self._errands.sent)
            self._errands.sent.append((topic.topic_id, partition))
            offset = await self._send(topic, partition, number)
        except (OSError, KafkaError) as error:
            if not isinstance(error, KafkaError) or error.code in STALE_METADATA:
                self._client.metadata.forget(name)
            await self._ledger.bear(error)
            return False
        self._errands.acknowledge(topic, partition, offset, number, since_offset=since_offset)
        return True

    async def _send(self, topic: TopicView, partition: int, number: int) -> int:
        leader = self._client.metadata.leader_in(topic, partition).leader
        batch = bytes(build_batch([(self._ports.clock.wall_ms(), None, b"%d" % number, ())]))
        timeout_ms = self._client.settings.request_timeout_ms
        request = requests.produce(topic, partition, batch, ACKS_ALL, timeout_ms, None)
        answer = await self._client.send(request, node=leader, version_at_most=version_limit(request))
        ((_, told),) = partitions_of(answer)
        check(told.error_code, told.error_message)
        return int(told.base_offset)

    async def _read(self, name: str, place: Place) -> list[int]:
        """All of a partition, at least as far as anything was acknowledged."""
        read: list[int] = []
        end_offset = self._errands.end_offset(place)
        while len(read) < end_offset:
            try:
                fetched = await self._client.fetch(name, place[1], len(read), max_bytes=FETCH_BYTES_MAX)
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    return read
                await self._ledger.bear(error)
                continue
            for _, batch in iterate_batches(fetched.records):
                for record in iterate_records(batch):
                    if record.offset > len(read):
                        where = self._errands.describe(place)
                        raise Violation(f"{where}: after offset {len(read) - 1} comes {record.offset}")
                    if record.offset == len(read):
                        read.append(int((record.value or b"-1").decode()))
        return read
