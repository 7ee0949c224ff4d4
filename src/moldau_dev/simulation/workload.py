"""Two clients of a simulated cluster, and a ledger that knows what their records must look like.

One producer per partition sends numbers in order, in idempotent batches, each again and again until it is acknowledged.
So in a right log the number of a record is its offset, which the reader checks record by record.
"""

import asyncio
import logging
import random
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import PASSING
from moldau.client.settings import ClientSettings
from moldau.client.types import LATEST, ProducerIdentity
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address
from moldau.model.ports import Ports
from moldau.records.builder import build_batch
from moldau.records.header import checksum
from moldau.records.record import iterate_batches, iterate_records

logger = logging.getLogger(__name__)

TOPIC: Final = "numbers"
RETRY_S: Final = 0.1
RECORDS_MAX: Final = 20
PADDING_BYTES_MAX: Final = 300


class Violation(AssertionError):
    """A promise to clients was broken."""


@dataclass(slots=True)
class Ledger:
    """What was acknowledged and read so far, by partition."""

    partitions: int
    disks_fail: bool = False  # then clients may hear of it
    topic: str = TOPIC
    is_replicated: bool = False  # then a new leader may not know yet how far its predecessor had come
    acknowledged: list[int] = field(init=False)  # how many numbers, from 0 on
    read: list[int] = field(init=False)  # likewise
    batches_acknowledged: int = 0

    def __post_init__(self) -> None:
        self.acknowledged = [0] * self.partitions
        self.read = [0] * self.partitions

    async def bear(self, error: OSError | KafkaError, retry_s: float = RETRY_S) -> None:
        """Brokers come and go, so a client tries again after what passes by itself; anything else it must not hear."""
        is_of_disk = isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR
        is_bearable = self.disks_fail if is_of_disk else not isinstance(error, KafkaError) or error.code in PASSING
        if not is_bearable:
            raise Violation(f"A client was told: {error!r}") from error
        logger.info("tries again after %r", error)
        await asyncio.sleep(retry_s)

    def acknowledge(self, partition: int, base_offset: int, first: int, count: int) -> None:
        if base_offset != first:
            raise Violation(f"{self.topic}-{partition}: numbers from {first} were acknowledged at offset {base_offset}")
        self.acknowledged[partition] = first + count
        self.batches_acknowledged += 1

    def see(self, partition: int, expected: int, offset: int, number: int) -> None:
        if offset != expected:
            raise Violation(f"{self.topic}-{partition}: after offset {expected - 1} a reader got {offset}")
        if number != offset:
            raise Violation(
                f"{self.topic}-{partition}: number {number} at offset {offset}: lost, repeated or out of order"
            )
        self.read[partition] = max(self.read[partition], offset + 1)

    def check_end(self, partition: int, end_offset: int) -> None:
        if not end_offset == self.acknowledged[partition] == self.read[partition]:
            raise Violation(
                f"{self.topic}-{partition} ends at {end_offset}, {self.acknowledged[partition]} numbers were"
                f" acknowledged and {self.read[partition]} read"
            )


def client(ports: Ports, bootstrap: list[Address], name: str) -> AsyncClient:
    """A client that loses patience soon, as one should where brokers die every few seconds."""
    settings = ClientSettings(client_id=name, connect_timeout_ms=2000, request_timeout_ms=3000, total_timeout_ms=10_000)
    return AsyncClient(ports.network, ports.clock, ports.random, bootstrap, settings=settings)


class NumberProducer:
    """Sends numbers to every partition until it is told to stop, and returns when all are acknowledged."""

    def __init__(self, ports: Ports, bootstrap: list[Address], ledger: Ledger, chance: random.Random) -> None:
        self.should_stop = False
        self._ports, self._ledger, self._chance = ports, ledger, chance
        self._client = client(ports, bootstrap, "producer")
        self._pause_s_max = chance.choice((0.2, 0.5))

    async def run(self) -> None:
        identity = await self._identify()
        async with self._client, asyncio.TaskGroup() as group:
            for partition in range(self._ledger.partitions):
                group.create_task(self._produce(partition, identity))

    async def _identify(self) -> ProducerIdentity:
        while True:
            try:
                return await self._client.init_producer_id()
            except (OSError, KafkaError) as error:
                await self._ledger.bear(error)

    async def _produce(self, partition: int, identity: ProducerIdentity) -> None:
        number = 0
        while not self.should_stop:
            count = self._chance.randint(1, RECORDS_MAX)
            batch = self._batch(number, count, identity)
            base_offset = await self._insist(partition, batch)
            self._ledger.acknowledge(partition, base_offset, number, count)
            number += count
            await asyncio.sleep(self._chance.uniform(0.0, self._pause_s_max))

    async def _insist(self, partition: int, batch: bytes) -> int:
        while True:
            try:
                return (await self._client.produce(self._ledger.topic, partition, batch)).base_offset
            except (OSError, KafkaError) as error:
                await self._ledger.bear(error)

    def _batch(self, first: int, count: int, identity: ProducerIdentity) -> bytes:
        padding = bytes(self._chance.randint(0, PADDING_BYTES_MAX))
        now_ms = self._ports.clock.wall_ms()
        records = [(now_ms, b"%d" % number, b"%d" % number + padding, ()) for number in range(first, first + count)]
        batch = build_batch(
            records, producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=first
        )
        return bytes(batch)


class NumberReader:
    """Reads every partition from its start, now and then from somewhere before again."""

    def __init__(self, ports: Ports, bootstrap: list[Address], ledger: Ledger, chance: random.Random) -> None:
        self.producer_is_done = False
        self._ledger, self._chance = ledger, chance
        self._client = client(ports, bootstrap, "reader")

    async def run(self) -> None:
        """Until everything that was acknowledged has been read; and nothing else may be there."""
        async with self._client:
            async with asyncio.TaskGroup() as group:
                for partition in range(self._ledger.partitions):
                    group.create_task(self._read(partition))
            for partition in range(self._ledger.partitions):
                end = await self._client.list_offset(self._ledger.topic, partition, LATEST)
                self._ledger.check_end(partition, end.offset)

    async def _read(self, partition: int) -> None:
        offset = 0
        while not self.producer_is_done or offset < self._ledger.acknowledged[partition]:
            try:
                offset = await self._read_some(partition, offset)
            except (OSError, KafkaError) as error:
                await self._ledger.bear(error)
            if self._chance.random() < 0.02:
                offset = self._chance.randint(0, offset)

    async def _read_some(self, partition: int, offset: int) -> int:
        bytes_max = self._chance.choice((1, 1000, 100_000))
        topic = self._ledger.topic
        fetched = await self._client.fetch(topic, partition, offset, max_bytes=bytes_max)
        if fetched.high_watermark < self._ledger.read[partition] and not self._ledger.is_replicated:
            raise Violation(f"{topic}-{partition}: what was read is above the high watermark {fetched.high_watermark}")
        for header, batch in iterate_batches(fetched.records):
            if checksum(batch, 0, len(batch)) != header.crc:
                raise Violation(f"{topic}-{partition}: the batch at {header.base_offset} does not match its checksum")
            for record in iterate_records(batch):
                if record.offset >= offset:
                    self._ledger.see(partition, offset, record.offset, int((record.key or b"-1").decode()))
                    offset = record.offset + 1
        return offset
