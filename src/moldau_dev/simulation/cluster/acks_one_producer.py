"""Clients with acks=1: their records may be lost, but a record that was read once must stay.

This checks the high watermark for them too: no record is served before every replica in the ISR has it.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from moldau.model.errors import KafkaError
from moldau.model.ids import Address
from moldau.model.ports import Ports
from moldau.records.builder import build_batch
from moldau.records.record import iterate_batches, iterate_records
from moldau_dev.simulation.workload import RETRY_S, Ledger, Violation, client

TOPIC: Final = "volatile"
# Host names, and with them the random streams of the clients: other names would change the runs of all seeds.
PRODUCER_HOST: Final = "whisperer"
READER_HOST: Final = "listener"
BURST_MAX: Final = 8  # parallel batches: a leader that dies has some that no other replica has
RECORDS_MAX: Final = 3


@dataclass(slots=True)
class ReadValues:
    """The values read from the only partition, by offset."""

    values: list[int] = field(default_factory=list)  # the index is the offset
    sent: int = 0

    def check_record(self, offset: int, value: int) -> None:
        if offset < len(self.values):
            if self.values[offset] != value:
                raise Violation(f"{TOPIC}: {self.values[offset]} was read at offset {offset}, and {value} later")
        elif offset == len(self.values):
            self.values.append(value)
        else:
            raise Violation(f"{TOPIC}: a reader got offset {offset} after {len(self.values) - 1}")


class AcksOneProducer:
    """Sends numbers with acks=1, without retries."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], seen: ReadValues, ledger: Ledger, rng: random.Random
    ) -> None:
        self.should_stop = False
        self._ports, self._seen, self._ledger, self._rng = ports, seen, ledger, rng
        self._client = client(ports, bootstrap, PRODUCER_HOST)

    async def run(self) -> None:
        async with self._client:
            while not self.should_stop:
                count = self._rng.choice((1, 1, BURST_MAX))
                await asyncio.gather(*(self._send() for _ in range(count)))
                await asyncio.sleep(self._rng.uniform(0.0, 0.5))

    async def _send(self) -> None:
        first, self._seen.sent = self._seen.sent, self._seen.sent + self._rng.randint(1, RECORDS_MAX)
        now_ms = self._ports.clock.wall_ms()
        batch = bytes(build_batch([(now_ms, None, b"%d" % value, ()) for value in range(first, self._seen.sent)]))
        try:
            await self._client.produce(TOPIC, 0, batch, acks=1)
        except (OSError, KafkaError) as error:
            await self._ledger.back_off(error)


class AcksOneReader:
    """Reads the topic, and sometimes jumps back to an earlier offset."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], seen: ReadValues, ledger: Ledger, rng: random.Random
    ) -> None:
        self.should_stop = False
        self._seen, self._ledger, self._rng = seen, ledger, rng
        self._client = client(ports, bootstrap, READER_HOST)

    async def run(self) -> None:
        """Read until `should_stop`, then at least up to the highest offset ever read."""
        async with self._client:
            offset = 0
            while not self.should_stop or offset < len(self._seen.values):
                try:
                    offset = await self._read(offset)
                except (OSError, KafkaError) as error:
                    await self._ledger.back_off(error)
                if not self.should_stop and self._rng.random() < 0.05:
                    offset = self._rng.randint(0, offset)
                await asyncio.sleep(RETRY_S)

    async def _read(self, offset: int) -> int:
        fetched = await self._client.fetch(TOPIC, 0, offset, max_wait_ms=200)
        for _, batch in iterate_batches(fetched.records):
            for record in iterate_records(batch):
                if record.offset >= offset:
                    self._seen.check_record(record.offset, int((record.value or b"-1").decode()))
                    offset = record.offset + 1
        return offset
