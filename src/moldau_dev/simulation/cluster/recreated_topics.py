"""Topics that an administrator creates, deletes and recreates under the same names, and the check of their content.

A name stands for several topics during a run, so acknowledged records are kept by topic id: each must be at its offset
unless the deletion of that topic was requested.
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

RECREATED_TOPICS: Final = ("cycled-0", "cycled-1", "cycled-2", "cycled-3")
PAUSE_S_MAX: Final = 0.3
FETCH_BYTES_MAX: Final = 100_000

Place = tuple[TopicId, int]  # a partition, by topic id


@dataclass(slots=True)
class RecreatedTopicsLedger:
    """The acknowledged records of these topics, and the topics whose deletion was requested."""

    sent: list[Place] = field(default_factory=list)  # the partition of each number; each is sent once
    acknowledged: int = 0
    deleted: set[TopicId] = field(default_factory=set)  # added before the request is sent
    numbers: dict[Place, dict[int, int]] = field(default_factory=dict)  # offset to number
    names: dict[TopicId, str] = field(default_factory=dict)

    def end_offset(self, place: Place) -> int:
        """Return the offset after the last acknowledged record."""
        return max(self.numbers.get(place, {}), default=-1) + 1

    def acknowledge(self, topic: TopicView, partition: int, offset: int, number: int, *, since_offset: int) -> None:
        """`since_offset` is the `end_offset` at the time of the request."""
        place = topic.topic_id, partition
        known = self.numbers.setdefault(place, {})
        self.names[topic.topic_id] = topic.name
        if offset < since_offset or offset in known:
            raise Violation(f"{self.describe(place)}: {number} was acknowledged at offset {offset}, after {known}")
        known[offset] = number
        self.acknowledged += 1

    def check_topics(self, image: MetadataImage) -> None:
        """Check that every topic with acknowledged records exists, unless its deletion was requested."""
        existing = {topic.topic_id: topic for topic in image.topics.values()}
        for place in self.numbers:
            topic_id, partition = place
            exists = topic_id in existing and partition < len(existing[topic_id].partitions)
            if topic_id not in self.deleted and not exists:
                raise Violation(f"{self.describe(place)} is gone without a request to delete it")

    def check_read(self, place: Place, read: list[int]) -> None:
        """Check the content of a partition: all acknowledged records, and none of another topic of that name."""
        for number in read:
            if self.sent[number] != place or read.count(number) > 1:
                raise Violation(
                    f"{self.describe(place)} has {number}, which was sent once, to {self.describe(self.sent[number])}"
                )
        for offset, number in self.numbers.get(place, {}).items():
            if offset >= len(read) or read[offset] != number:
                actual = read[offset] if offset < len(read) else "nothing"
                raise Violation(f"{self.describe(place)}: {number} was acknowledged at {offset}, which has {actual}")

    def existing(self, image: MetadataImage) -> Iterator[TopicImage]:
        """Yield the topics whose deletion was not requested."""
        for name in RECREATED_TOPICS:
            topic = image.topics.get(name)
            if topic is not None and topic.topic_id not in self.deleted:
                yield topic

    def describe(self, place: Place) -> str:
        topic_id, partition = place
        return f"{self.names.get(topic_id)}-{partition} ({topic_id.hex()})"


class RecreatedTopicsWriter:
    """Sends numbers, each once, with acks=all, and records their offsets."""

    def __init__(
        self,
        ports: Ports,
        bootstrap: list[Address],
        recreated: RecreatedTopicsLedger,
        ledger: Ledger,
        rng: random.Random,
    ) -> None:
        self._ports, self._recreated, self._ledger, self._rng = ports, recreated, ledger, rng
        self._client = client(ports, bootstrap, "errand-writer")

    async def run(self, is_active: Callable[[], bool], image: Callable[[], MetadataImage]) -> None:
        """Write to random topics while the chaos is active."""
        async with self._client:
            while is_active():
                await asyncio.sleep(self._rng.uniform(0.0, PAUSE_S_MAX))
                topics = list(self._recreated.existing(image()))
                if topics:
                    topic = self._rng.choice(topics)
                    await self._write(topic.name, self._rng.randrange(len(topic.partitions)))

    async def audit(self, image: Callable[[], MetadataImage]) -> None:
        """After healing: every partition accepts one more number and has all acknowledged ones."""
        async with self._client:
            for topic in list(self._recreated.existing(image())):
                for partition in range(len(topic.partitions)):
                    while not await self._write(topic.name, partition):
                        pass
                    place = topic.topic_id, partition
                    self._recreated.check_read(place, await self._read(topic.name, place))
            self._recreated.check_topics(image())

    async def _write(self, name: str, partition: int) -> bool:
        """Send one number; return whether it is acknowledged. Otherwise its fate is unknown."""
        try:
            topic = await self._client.topic(name)
            since_offset = self._recreated.end_offset((topic.topic_id, partition))
            number = len(self._recreated.sent)
            self._recreated.sent.append((topic.topic_id, partition))
            offset = await self._send(topic, partition, number)
        except (OSError, KafkaError) as error:
            if not isinstance(error, KafkaError) or error.code in STALE_METADATA:
                self._client.metadata.forget(name)
            await self._ledger.back_off(error)
            return False
        self._recreated.acknowledge(topic, partition, offset, number, since_offset=since_offset)
        return True

    async def _send(self, topic: TopicView, partition: int, number: int) -> int:
        leader = self._client.metadata.leader_in(topic, partition).leader
        batch = bytes(build_batch([(self._ports.clock.wall_ms(), None, b"%d" % number, ())]))
        timeout_ms = self._client.settings.request_timeout_ms
        request = requests.produce(topic, partition, batch, ACKS_ALL, timeout_ms, None)
        response = await self._client.send(request, node=leader, version_at_most=version_limit(request))
        ((_, partition_response),) = partitions_of(response)
        check(partition_response.error_code, partition_response.error_message)
        return int(partition_response.base_offset)

    async def _read(self, name: str, place: Place) -> list[int]:
        """Read a partition, at least up to the last acknowledged record."""
        read: list[int] = []
        end_offset = self._recreated.end_offset(place)
        while len(read) < end_offset:
            try:
                fetched = await self._client.fetch(name, place[1], len(read), max_bytes=FETCH_BYTES_MAX)
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    return read
                await self._ledger.back_off(error)
                continue
            for _, batch in iterate_batches(fetched.records):
                for record in iterate_records(batch):
                    if record.offset > len(read):
                        where = self._recreated.describe(place)
                        raise Violation(f"{where}: offset {record.offset} follows {len(read) - 1}")
                    if record.offset == len(read):
                        read.append(int((record.value or b"-1").decode()))
        return read
