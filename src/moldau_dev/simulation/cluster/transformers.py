"""Clients that transform numbers into results in transactions, and the ledger that checks exactly-once.

Each transformer reads one partition of the numbers and writes every number to two partitions of the results, with its
offsets in the same transaction. So under any faults a `read_committed` reader finds the numbers of each source once,
in order and without gaps, in both partitions.
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
LAST_FETCH_BYTES_MAX: Final = 100_000  # once the producer is done: slow disks leave a backlog
REST_S_MAX: Final = 4.0

# Fenced by another producer, or the coordinator has ended the transaction: initialise again.
_FENCED: Final = (
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
    """The progress of the transformation per partition, as acknowledged to clients."""

    committed: dict[int, int] = field(default_factory=dict)  # acknowledged
    attempted: dict[int, dict[int, None]] = field(default_factory=dict)  # commit requested, possibly done
    read: dict[tuple[int, int], int] = field(default_factory=dict)  # by result partition and source partition
    transactions: int = 0
    aborts: int = 0

    def attempt(self, partition: int, offset: int) -> None:
        self.attempted.setdefault(partition, {})[offset] = None

    def commit(self, partition: int, offset: int) -> None:
        self.committed[partition] = max(self.committed.get(partition, 0), offset)
        self.transactions += 1

    def resume(self, partition: int, offset: int, floor: int) -> None:
        """Check a fetched offset: it never decreases, and a commit of it was requested."""
        if offset < floor:
            raise Violation(f"{GROUP}: partition {partition}: {offset} was fetched, but {floor} was committed before")
        if offset and offset not in self.attempted.get(partition, {}):
            raise Violation(f"{GROUP}: partition {partition}: {offset} was fetched, but its commit was never requested")

    def check_result(self, place: int, source: int, number: int) -> None:
        expected = self.read.get((place, source), 0)
        if number != expected:
            problem = "repeated or aborted" if number < expected else "missing"
            raise Violation(f"{RESULTS}-{place}: read {number} of source {source} instead of {expected}: {problem}")
        self.read[place, source] = number + 1


def places_of(source: int) -> list[int]:
    """Return the result partitions of a source in the order of writing, which differs between sources."""
    return [(source + step) % RESULT_PARTITIONS for step in range(RESULT_PARTITIONS)]


class Transformer:
    """One of two producers that share a transactional id and fence each other."""

    def __init__(
        self,
        name: str,
        source: int,
        ports: Ports,
        bootstrap: list[Address],
        ledger: Ledger,
        results: TransformLedger,
        rng: random.Random,
    ) -> None:
        self.producer_is_done = False
        self._source = TopicPartition(ledger.topic, source)
        self._ports, self._ledger, self._results, self._rng = ports, ledger, results, rng
        self._client: AsyncClient = client(ports, bootstrap, name)
        self._is_v1 = rng.random() < 0.3
        self._group = Coordinator(self._client, GROUP, GROUP_KEY)

    async def run(self) -> None:
        """Run until all acknowledged numbers are transformed."""
        async with self._client:
            while not self._is_done():
                try:
                    await self._run_producer()
                except (OSError, KafkaError) as error:
                    await self._handle_error(error)

    def _is_done(self) -> bool:
        source = self._source.partition
        return self.producer_is_done and self._results.committed.get(source, 0) >= self._ledger.acknowledged[source]

    async def _handle_error(self, error: OSError | KafkaError) -> None:
        if self._is_v1 and isinstance(error, KafkaError) and error.code in _NOT_OPEN:
            # Ending its transaction bumps the epoch, so the only possible error is that it is fenced.
            raise Violation(f"A producer of version 1 got an error for a closed transaction: {error!r}") from error
        if isinstance(error, KafkaError) and error.code in _FENCED:
            await self._rest()
        else:
            await self._ledger.back_off(error)

    async def _rest(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, REST_S_MAX))

    async def _run_producer(self) -> None:
        """Initialise the transactional id and transform until fenced."""
        producer = TransactionalProducer(
            self._client, f"transformer-{self._source.partition}", timeout_ms=TRANSACTION_MS, is_v1=self._is_v1
        )
        await producer.initialise()
        position = await self._resume()
        while not self._is_done():
            numbers, end = await self._read(position)
            if numbers:
                position = await self._transform(producer, numbers, position, end)
            if self._rng.random() < 0.03:
                await self._rest()

    async def _resume(self) -> int:
        source = self._source.partition
        floor = self._results.committed.get(source, 0)
        offset = await self._fetch_offset(is_stable=True)
        if offset > floor:  # a commit whose response was lost
            self._results.commit(source, offset)
        return offset

    async def _fetch_offset(self, *, is_stable: bool) -> int:
        """Fetch the committed offset; offsets of open transactions are never returned."""
        source = self._source.partition
        floor = self._results.committed.get(source, 0)
        whole = messages.OffsetFetchRequest
        topics = [whole.OffsetFetchRequestTopic(name=self._source.topic, partition_indexes=[source])]
        response = await self._group.send(
            whole(group_id=GROUP, topics=topics, require_stable=is_stable),
            lambda each_response: [
                each_response.error_code,
                *(each.error_code for topic in each_response.topics for each in topic.partitions),
            ],
            version_at_most=FETCH_AT_MOST,
        )
        offset = max(int(response.topics[0].partitions[0].committed_offset), 0)
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
        """Run one transaction and return the next position."""
        source = self._source.partition
        now_ms = self._ports.clock.wall_ms()
        for place in places_of(source):
            records = [(now_ms, b"%d" % source, b"%d" % number, ()) for number in numbers]
            await producer.send(RESULTS, place, records)
        await producer.send_offsets(GROUP, {self._source: end})
        if self._rng.random() < 0.1:
            await self._fetch_offset(is_stable=False)
        draw = self._rng.random()
        if draw < 0.1:
            await producer.end(is_commit=False)
            self._results.aborts += 1
            return position
        if draw < 0.14:  # abandoned: aborted by the next initialise or the transaction timeout
            await self._rest()
            await producer.initialise()
            return await self._resume()
        self._results.attempt(source, end)
        await producer.end(is_commit=True)
        self._results.commit(source, end)
        return end


class ResultReader:
    """Reads the committed results, and sometimes again from an earlier offset: they must not change."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], ledger: Ledger, results: TransformLedger, rng: random.Random
    ) -> None:
        self.transformers_are_done = False
        self._ledger, self._results, self._rng = ledger, results, rng
        self._client = client(ports, bootstrap, "result-reader")
        self._offsets: dict[int, list[int]] = {place: [] for place in range(RESULT_PARTITIONS)}
        self._values: dict[int, list[tuple[int, int]]] = {place: [] for place in range(RESULT_PARTITIONS)}

    async def run(self) -> None:
        """Run until all results are read and no transaction is open."""
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
                await self._ledger.back_off(error)
            if self._rng.random() < 0.02:
                offset = self._rng.randint(0, offset)

    async def _is_at_end(self, place: int, offset: int) -> bool:
        """Whether the reader is at the end, markers included: an open transaction would block it earlier."""
        try:
            return offset >= (await self._client.list_offset(RESULTS, place, LATEST)).offset
        except (OSError, KafkaError) as error:
            await self._ledger.back_off(error)
            return False

    async def _read_some(self, place: int, offset: int) -> int:
        fetched = await self._client.fetch(
            RESULTS,
            place,
            offset,
            max_bytes=self._rng.choice((1, 1000, 100_000)),
            isolation=Isolation.READ_COMMITTED,
        )
        if fetched.last_stable_offset > fetched.high_watermark:
            raise Violation(
                f"{RESULTS}-{place}: the last stable offset {fetched.last_stable_offset} is above the high watermark"
            )
        for header, batch, is_shown in visible_batches(fetched.records, fetched.aborted, Isolation.READ_COMMITTED):
            if header.last_offset >= fetched.last_stable_offset:
                raise Violation(f"{RESULTS}-{place}: {header.last_offset} was served above the last stable offset")
            for record in iterate_records(batch) if is_shown else ():
                if record.offset >= offset:
                    self._check_result(place, offset, record.offset, record.key or b"", record.value or b"")
                    offset = record.offset + 1
            offset = max(offset, header.last_offset + 1)
        return offset

    def _check_result(self, place: int, offset: int, found: int, key: bytes, value: bytes) -> None:
        """`found` is the first visible record from `offset` on."""
        result = (int(key), int(value))
        offsets, values = self._offsets[place], self._values[place]
        index = bisect_left(offsets, offset)
        if index == len(offsets):
            self._results.check_result(place, *result)
            offsets.append(found)
            values.append(result)
        elif (offsets[index], values[index]) != (found, result):
            raise Violation(f"{RESULTS}-{place}: {values[index]} was read at {offsets[index]}, now {result} at {found}")
