"""Writes that only the leader has to take (acks=1): they may be lost, but what anybody has read stays.

So the high watermark is held to its word for them too: nothing is served that not every replica in sync has.
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

WHISPERS: Final = "whispers"
BURST_MAX: Final = 8  # batches at the same time: a leader that dies has taken some that nobody else has
RECORDS_MAX: Final = 3


@dataclass(slots=True)
class Heard:
    """What was read, by offset. There is one partition."""

    values: list[int] = field(default_factory=list)  # at their offsets
    sent: int = 0
    answered: int = 0

    def hear(self, offset: int, value: int) -> None:
        if offset < len(self.values):
            if self.values[offset] != value:
                raise Violation(f"{WHISPERS}: {self.values[offset]} was read at {offset}, and {value} later")
        elif offset == len(self.values):
            self.values.append(value)
        else:
            raise Violation(f"{WHISPERS}: after offset {len(self.values) - 1} a reader got {offset}")


class Whisperer:
    """Sends numbers, waits only for the leader, and forgets them."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], heard: Heard, ledger: Ledger, chance: random.Random
    ) -> None:
        self.should_stop = False
        self._ports, self._heard, self._ledger, self._chance = ports, heard, ledger, chance
        self._client = client(ports, bootstrap, "whisperer")

    async def run(self) -> None:
        async with self._client:
            while not self.should_stop:
                count = self._chance.choice((1, 1, BURST_MAX))
                await asyncio.gather(*(self._send() for _ in range(count)))
                await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    async def _send(self) -> None:
        first, self._heard.sent = self._heard.sent, self._heard.sent + self._chance.randint(1, RECORDS_MAX)
        now_ms = self._ports.clock.wall_ms()
        batch = bytes(build_batch([(now_ms, None, b"%d" % value, ()) for value in range(first, self._heard.sent)]))
        try:
            await self._client.produce(WHISPERS, 0, batch, acks=1)
            self._heard.answered += 1
        except (OSError, KafkaError) as error:
            await self._ledger.bear(error)


class Listener:
    """Reads from the start to the end again and again."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], heard: Heard, ledger: Ledger, chance: random.Random
    ) -> None:
        self.should_stop = False
        self._heard, self._ledger, self._chance = heard, ledger, chance
        self._client = client(ports, bootstrap, "listener")

    async def run(self) -> None:
        """At least to the end of what was ever read, after it is told to stop."""
        async with self._client:
            offset = 0
            while not self.should_stop or offset < len(self._heard.values):
                try:
                    offset = await self._read(offset)
                except (OSError, KafkaError) as error:
                    await self._ledger.bear(error)
                if not self.should_stop and self._chance.random() < 0.05:
                    offset = self._chance.randint(0, offset)
                await asyncio.sleep(RETRY_S)

    async def _read(self, offset: int) -> int:
        fetched = await self._client.fetch(WHISPERS, 0, offset, max_wait_ms=200)
        for _, batch in iterate_batches(fetched.records):
            for record in iterate_records(batch):
                if record.offset >= offset:
                    self._heard.hear(record.offset, int((record.value or b"-1").decode()))
                    offset = record.offset + 1
        return offset
