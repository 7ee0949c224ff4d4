"""Two clients of a simulated cluster, and a ledger of the records they must see.

One producer per partition sends numbers in order, in idempotent batches, each retried until it is acknowledged.
In a correct log the number of a record therefore equals its offset, which the reader checks record by record.
"""

import asyncio
import logging
import random
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import RETRIABLE
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
    """A guarantee to clients was broken."""


@dataclass(slots=True)
class Ledger:
    """The records acknowledged and read so far, per partition."""

    partitions: int
    disks_fail: bool = False  # then clients may get KAFKA_STORAGE_ERROR
    topic: str = TOPIC
    is_replicated: bool = False  # then the high watermark of a new leader may lag behind its predecessor's
    acknowledged: list[int] = field(init=False)  # count of numbers, from 0
    read: list[int] = field(init=False)  # count of numbers, from 0
    batches_acknowledged: int = 0

    def __post_init__(self) -> None:
        self.acknowledged = [0] * self.partitions
        self.read = [0] * self.partitions

    async def back_off(self, error: OSError | KafkaError, retry_s: float = RETRY_S) -> None:
        """Sleep before the retry of a retriable error; any other error is a violation."""
        is_disk_error = isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR
        is_retriable = (
            self.disks_fail if is_disk_error else not isinstance(error, KafkaError) or error.code in RETRIABLE
        )
        if not is_retriable:
            raise Violation(f"A client got a non-retriable error: {error!r}") from error
        logger.info("retrying after %r", error)
        await asyncio.sleep(retry_s)

    def acknowledge(self, partition: int, base_offset: int, first: int, count: int) -> None:
        if base_offset != first:
            raise Violation(f"{self.topic}-{partition}: number {first} was acknowledged at offset {base_offset}")
        self.acknowledged[partition] = first + count
        self.batches_acknowledged += 1

    def check_record(self, partition: int, expected: int, offset: int, number: int) -> None:
        if offset != expected:
            raise Violation(f"{self.topic}-{partition}: a reader got offset {offset} after {expected - 1}")
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
    """Return a client with short timeouts, since brokers crash every few seconds."""
    settings = ClientSettings(client_id=name, connect_timeout_ms=2000, request_timeout_ms=3000, total_timeout_ms=10_000)
    return AsyncClient(ports.network, ports.clock, ports.random, bootstrap, settings=settings)


class NumberProducer:
    """Sends numbers to every partition until `should_stop`, and returns when all are acknowledged."""

    def __init__(self, ports: Ports, bootstrap: list[Address], ledger: Ledger, rng: random.Random) -> None:
        self.should_stop = False
        self._ports, self._ledger, self._rng = ports, ledger, rng
        self._client = client(ports, bootstrap, "producer")
        self._pause_s_max = rng.choice((0.2, 0.5))

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
                await self._ledger.back_off(error)

    async def _produce(self, partition: int, identity: ProducerIdentity) -> None:
        number = 0
        while not self.should_stop:
            count = self._rng.randint(1, RECORDS_MAX)
            batch = self._batch(number, count, identity)
            base_offset = await self._send_until_acknowledged(partition, batch)
            self._ledger.acknowledge(partition, base_offset, number, count)
            number += count
            await asyncio.sleep(self._rng.uniform(0.0, self._pause_s_max))

    async def _send_until_acknowledged(self, partition: int, batch: bytes) -> int:
        while True:
            try:
                return (await self._client.produce(self._ledger.topic, partition, batch)).base_offset
            except (OSError, KafkaError) as error:
                await self._ledger.back_off(error)

    def _batch(self, first: int, count: int, identity: ProducerIdentity) -> bytes:
        padding = bytes(self._rng.randint(0, PADDING_BYTES_MAX))
        now_ms = self._ports.clock.wall_ms()
        records = [(now_ms, b"%d" % number, b"%d" % number + padding, ()) for number in range(first, first + count)]
        batch = build_batch(
            records, producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=first
        )
        return bytes(batch)


class NumberReader:
    """Reads every partition from its start, and sometimes jumps back to an earlier offset."""

    def __init__(self, ports: Ports, bootstrap: list[Address], ledger: Ledger, rng: random.Random) -> None:
        self.producer_is_done = False
        self._ledger, self._rng = ledger, rng
        self._client = client(ports, bootstrap, "reader")

    async def run(self) -> None:
        """Read until all acknowledged numbers are read; the logs must contain nothing else."""
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
                await self._ledger.back_off(error)
            if self._rng.random() < 0.02:
                offset = self._rng.randint(0, offset)

    async def _read_some(self, partition: int, offset: int) -> int:
        bytes_max = self._rng.choice((1, 1000, 100_000))
        topic = self._ledger.topic
        fetched = await self._client.fetch(topic, partition, offset, max_bytes=bytes_max)
        if fetched.high_watermark < self._ledger.read[partition] and not self._ledger.is_replicated:
            raise Violation(f"{topic}-{partition}: the high watermark {fetched.high_watermark} is below what was read")
        for header, batch in iterate_batches(fetched.records):
            if checksum(batch, 0, len(batch)) != header.crc:
                raise Violation(f"{topic}-{partition}: the batch at {header.base_offset} has a wrong checksum")
            for record in iterate_records(batch):
                if record.offset >= offset:
                    self._ledger.check_record(partition, offset, record.offset, int((record.key or b"-1").decode()))
                    offset = record.offset + 1
        return offset
