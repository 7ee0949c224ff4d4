"""Clients that turn numbers into results in transactions, and the ledger that holds the cluster to "exactly once".

Each transformer reads one partition of the numbers and writes every number to two partitions of the results, with its
own progress in the same transaction. So whatever dies, a reader of committed records finds the numbers of each once, in
order and without a gap, in both places.
"""

import asyncio
import random
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.coordinators import GROUP_KEY, Coordinator
from moldau.client.groups import FETCH_AT_MOST
from moldau.client.transactional_producer import TransactionalProducer
from moldau.client.types import LATEST, Isolation
from moldau.client.visibility import visible_batches
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address, TopicPartition
from moldau.model.ports import Ports
from moldau.records.record import iterate_records
from moldau.wire import messages
from moldau_dev.simulation.workload import Ledger, Violation, client

RESULTS: Final = "results"
RESULT_PARTITIONS: Final = 2
GROUP: Final = "transformers"
TRANSACTION_MS: Final = 6_000
FETCH_BYTES_MAX: Final = 2_000
LAST_FETCH_BYTES_MAX: Final = 100_000  # when no more numbers come: on slow disks many are left over
REST_S_MAX: Final = 4.0

# Somebody else has the id, or the coordinator has ended the transaction: begin a new life.
_OVER: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)
_NOT_OPEN: Final = (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)


@dataclass(slots=True)
class TransformLedger:
    """How far the numbers of each partition are transformed, as far as clients were told."""

    committed: dict[int, int] = field(default_factory=dict)  # acknowledged
    attempted: dict[int, dict[int, None]] = field(default_factory=dict)  # a commit was asked for, and may have come
    read: dict[tuple[int, int], int] = field(default_factory=dict)  # by partition of results and of numbers
    transactions: int = 0
    aborts: int = 0

    def attempt(self, partition: int, offset: int) -> None:
        self.attempted.setdefault(partition, {})[offset] = None

    def commit(self, partition: int, offset: int) -> None:
        self.committed[partition] = max(self.committed.get(partition, 0), offset)
        self.transactions += 1

    def resume(self, partition: int, offset: int, floor: int) -> None:
        """Progress never goes back, and is never that of a transaction which nobody tried to commit."""
        if offset < floor:
            raise Violation(f"{GROUP}: partition {partition}: {floor} was committed, {offset} came back")
        if offset and offset not in self.attempted.get(partition, {}):
            raise Violation(f"{GROUP}: partition {partition}: {offset} came back, which was never to be committed")

    def see(self, place: int, source: int, number: int) -> None:
        expected = self.read.get((place, source), 0)
        if number != expected:
            what = "a repeated or aborted one" if number < expected else "one is missing"
            raise Violation(f"{RESULTS}-{place}: number {number} of {source} came, not {expected}: {what}")
        self.read[place, source] = number + 1


def places_of(source: int) -> list[int]:
    """Where the numbers of a partition go: to all places, one after the other, from a different one each."""
    return [(source + step) % RESULT_PARTITIONS for step in range(RESULT_PARTITIONS)]


class Transformer:
    """One of two that share a transactional id and take it from each other."""

    def __init__(
        self,
        name: str,
        source: int,
        ports: Ports,
        bootstrap: list[Address],
        ledger: Ledger,
        results: TransformLedger,
        chance: random.Random,
    ) -> None:
        self.producer_is_done = False
        self._source = TopicPartition(ledger.topic, source)
        self._ports, self._ledger, self._results, self._chance = ports, ledger, results, chance
        self._client: AsyncClient = client(ports, bootstrap, name)
        self._is_v1 = chance.random() < 0.3
        self._group = Coordinator(self._client, GROUP, GROUP_KEY)

    async def run(self) -> None:
        """Until every number that was acknowledged has become a result."""
        async with self._client:
            while not self._is_done():
                try:
                    await self._live()
                except (OSError, KafkaError) as error:
                    await self._bear(error)

    def _is_done(self) -> bool:
        source = self._source.partition
        return self.producer_is_done and self._results.committed.get(source, 0) >= self._ledger.acknowledged[source]

    async def _bear(self, error: OSError | KafkaError) -> None:
        if self._is_v1 and isinstance(error, KafkaError) and error.code in _NOT_OPEN:
            # Whoever ends what it has open takes its epoch away, so it can only hear that it is fenced.
            raise Violation(f"A producer of version 1 was told that its transaction is not open: {error!r}") from error
        if isinstance(error, KafkaError) and error.code in _OVER:
            await self._rest()
        else:
            await self._ledger.bear(error)

    async def _rest(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, REST_S_MAX))

    async def _live(self) -> None:
        """From taking the id over to losing it."""
        producer = TransactionalProducer(
            self._client, f"transformer-{self._source.partition}", timeout_ms=TRANSACTION_MS, is_v1=self._is_v1
        )
        await producer.initialise()
        position = await self._resume()
        while not self._is_done():
            numbers, end = await self._read(position)
            if numbers:
                position = await self._transform(producer, numbers, position, end)
            if self._chance.random() < 0.03:
                await self._rest()

    async def _resume(self) -> int:
        source = self._source.partition
        floor = self._results.committed.get(source, 0)
        offset = await self._progress(is_stable=True)
        if offset > floor:  # a commit whose answer was lost
            self._results.commit(source, offset)
        return offset

    async def _progress(self, *, is_stable: bool) -> int:
        """As the group's coordinator tells it: of an open transaction nothing, whoever asks."""
        source = self._source.partition
        floor = self._results.committed.get(source, 0)
        whole = messages.OffsetFetchRequest
        topics = [whole.OffsetFetchRequestTopic(name=self._source.topic, partition_indexes=[source])]
        answer = await self._group.ask(
            whole(group_id=GROUP, topics=topics, require_stable=is_stable),
            lambda told: [told.error_code, *(each.error_code for topic in told.topics for each in topic.partitions)],
            version_at_most=FETCH_AT_MOST,
        )
        offset = max(int(answer.topics[0].partitions[0].committed_offset), 0)
        self._results.resume(source, offset, floor)
        return offset

    async def _read(self, position: int) -> tuple[list[int], int]:
        fetched = await self._client.fetch(
            self._source.topic,
            self._source.partition,
            position,
            max_bytes=LAST_FETCH_BYTES_MAX if self.producer_is_done else FETCH_BYTES_MAX,
            max_wait_ms=200,
            isolation=Isolation.READ_COMMITTED,
        )
        numbers = []
        for _, batch, is_shown in visible_batches(fetched.records, fetched.aborted, Isolation.READ_COMMITTED):
            for record in iterate_records(batch) if is_shown else ():
                if record.offset >= position:
                    numbers.append(int((record.key or b"-1").decode()))
                    position = record.offset + 1
        return numbers, position

    async def _transform(self, producer: TransactionalProducer, numbers: list[int], position: int, end: int) -> int:
        """One transaction; where to go on."""
        source = self._source.partition
        now_ms = self._ports.clock.wall_ms()
        for place in places_of(source):
            records = [(now_ms, b"%d" % source, b"%d" % number, ()) for number in numbers]
            await producer.send(RESULTS, place, records)
        await producer.send_offsets(GROUP, {self._source: end})
        if self._chance.random() < 0.1:
            await self._progress(is_stable=False)
        luck = self._chance.random()
        if luck < 0.1:
            await producer.end(is_commit=False)
            self._results.aborts += 1
            return position
        if luck < 0.14:  # forgotten: its successor, or its time-out, has to abort it
            await self._rest()
            await producer.initialise()
            return await self._resume()
        self._results.attempt(source, end)
        await producer.end(is_commit=True)
        self._results.commit(source, end)
        return end


class ResultReader:
    """Reads the committed results, and all of them again now and then: they must stay as they were."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], ledger: Ledger, results: TransformLedger, chance: random.Random
    ) -> None:
        self.transformers_are_done = False
        self._ledger, self._results, self._chance = ledger, results, chance
        self._client = client(ports, bootstrap, "result-reader")
        self._offsets: dict[int, list[int]] = {place: [] for place in range(RESULT_PARTITIONS)}
        self._values: dict[int, list[tuple[int, int]]] = {place: [] for place in range(RESULT_PARTITIONS)}

    async def run(self) -> None:
        """Until all results are read, and nothing is left open."""
        async with self._client, asyncio.TaskGroup() as group:
            for place in range(RESULT_PARTITIONS):
                group.create_task(self._read(place))

    def _has_all(self, place: int) -> bool:
        return self.transformers_are_done and all(
            self._results.read.get((place, source), 0) >= self._ledger.acknowledged[source]
            for source in range(self._ledger.partitions)
        )

    async def _read(self, place: int) -> None:
        offset = 0
        while not (self._has_all(place) and await self._is_at_end(place, offset)):
            try:
                offset = await self._read_some(place, offset)
            except (OSError, KafkaError) as error:
                await self._ledger.bear(error)
            if self._chance.random() < 0.02:
                offset = self._chance.randint(0, offset)

    async def _is_at_end(self, place: int, offset: int) -> bool:
        """Markers included: an open transaction would hold the reader up before the end."""
        try:
            return offset >= (await self._client.list_offset(RESULTS, place, LATEST)).offset
        except (OSError, KafkaError) as error:
            await self._ledger.bear(error)
            return False

    async def _read_some(self, place: int, offset: int) -> int:
        fetched = await self._client.fetch(
            RESULTS,
            place,
            offset,
            max_bytes=self._chance.choice((1, 1000, 100_000)),
            isolation=Isolation.READ_COMMITTED,
        )
        if fetched.last_stable_offset > fetched.high_watermark:
            raise Violation(f"{RESULTS}-{place}: {fetched.last_stable_offset} is stable, above the high watermark")
        for header, batch, is_shown in visible_batches(fetched.records, fetched.aborted, Isolation.READ_COMMITTED):
            if header.last_offset >= fetched.last_stable_offset:
                raise Violation(f"{RESULTS}-{place}: {header.last_offset} was served, not stable yet")
            for record in iterate_records(batch) if is_shown else ():
                if record.offset >= offset:
                    self._take(place, offset, record.offset, record.key or b"", record.value or b"")
                    offset = record.offset + 1
            offset = max(offset, header.last_offset + 1)
        return offset

    def _take(self, place: int, offset: int, found: int, key: bytes, value: bytes) -> None:
        """`found` is the first visible record from `offset` on."""
        result = (int(key), int(value))
        offsets, values = self._offsets[place], self._values[place]
        index = bisect_left(offsets, offset)
        if index == len(offsets):
            self._results.see(place, *result)
            offsets.append(found)
            values.append(result)
        elif (offsets[index], values[index]) != (found, result):
            raise Violation(f"{RESULTS}-{place}: {values[index]} was read at {offsets[index]}, now {result} at {found}")
