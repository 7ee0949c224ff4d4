"""Transactional producers of the load generator: version 2, and version 1 like librdkafka."""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from moldau.cli.bench import processes
from moldau.cli.bench.closed_loop import Pumped
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.requests import PRODUCE_TIMEOUT_MS
from moldau.cli.bench.streams import Address
from moldau.cli.errors import CommandError
from moldau.client.errors import error_of
from moldau.client.leader_requests import first_error
from moldau.client.transactional_producer import add_partitions_codes
from moldau.model.errors import ErrorCode
from moldau.model.protocol import ACKS_ALL
from moldau.records.builder import assemble_batch
from moldau.records.header import HEADER_BYTES, TRANSACTIONAL, read_header
from moldau.wire import messages
from moldau.wire.messages import Message
from moldau_dev.bench.conversations import Conversation, Reply, Requested, Talk, ask, converse
from moldau_dev.bench.footprint import DESCRIPTORS_SPARE, allow_descriptors

TIMEOUT_MS: Final = 60_000
TRANSACTION_KEY: Final = 1
TRIES_MAX: Final = 10_000

# One key at a time; epochs that stay, or that the broker raises; lists since there are any.
FIND_VERSION, INIT_VERSION, ADD_VERSION, LIST_VERSION = 3, 4, 3, 0
PRODUCE_VERSIONS: Final = {1: 11, 2: 12}
END_VERSIONS: Final = {1: 4, 2: 5}

_PASSING: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

Step = Generator[Requested, Reply, Any]


class Producer:
    """A transactional id that repeatedly writes the same batch to one partition."""

    def __init__(self, topic: Topic, partition: int, name: str, batch: bytes, version: int) -> None:
        self._topic, self._partition, self._name = topic.name, partition, name
        self._leader = topic.leaders[partition]
        self._coordinator: Address = self._leader
        self._version = version
        self._header, self._body = read_header(batch), batch[HEADER_BYTES:]
        self._identity, self._sequence = (-1, -1), 0

    def start(self) -> Step:
        found = yield from _persist(
            self._leader, messages.FindCoordinatorRequest(key=self._name, key_type=TRANSACTION_KEY), FIND_VERSION
        )
        self._coordinator = found.host, found.port
        request = messages.InitProducerIdRequest(transactional_id=self._name, transaction_timeout_ms=TIMEOUT_MS)
        self._become((yield from _persist(self._coordinator, request, INIT_VERSION)))

    def write(self) -> Step:
        """Produce a batch, which starts a transaction."""
        if self._version == 1:
            yield from _persist(self._coordinator, self._enrolling(), ADD_VERSION, add_partitions_codes)
        yield from _persist(self._leader, self._producing(), PRODUCE_VERSIONS[self._version], _produced_codes)
        self._sequence += self._header.last_offset_delta + 1

    def end(self, *, is_commit: bool = True) -> Step:
        producer_id, epoch = self._identity
        request = messages.EndTxnRequest(
            transactional_id=self._name, producer_id=producer_id, producer_epoch=epoch, committed=is_commit
        )
        response = yield from _persist(self._coordinator, request, END_VERSIONS[self._version])
        if self._version > 1:
            self._become(response)

    def _become(self, response: Any) -> None:
        self._identity, self._sequence = (response.producer_id, response.producer_epoch), 0

    def _enrolling(self) -> Message:
        producer_id, epoch = self._identity
        request = messages.AddPartitionsToTxnRequest
        return request(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                request.AddPartitionsToTxnTopic(name=self._topic, partitions=[self._partition]),
            ],
        )

    def _producing(self) -> Message:
        whole = messages.ProduceRequest
        data = whole.PartitionProduceData(index=self._partition, records=self._batch())
        return whole(
            transactional_id=self._name,
            acks=ACKS_ALL,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[whole.TopicProduceData(name=self._topic, partition_data=[data])],
        )

    def _batch(self) -> bytes:
        """Return the batch with the producer's current id, epoch and sequence; the records do not change."""
        header = self._header
        producer_id, epoch = self._identity
        batch = assemble_batch(
            self._body,
            base_offset=0,
            leader_epoch=-1,
            attributes=header.attributes | TRANSACTIONAL,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence,
            records_count=header.last_offset_delta + 1,
        )
        return bytes(batch)


def _persist(
    address: Address,
    request: Message,
    version: int,
    codes: Callable[[Any], list[int]] = lambda response: [response.error_code],
) -> Step:
    """Retry a request while its error is retriable."""
    for _ in range(TRIES_MAX):
        response = yield from ask(address, request, version)
        errors = [code for code in codes(response) if code]
        if not errors:
            return response
        if errors[0] not in _PASSING:
            raise error_of(errors[0])
    raise CommandError(f"the broker returned retriable errors {TRIES_MAX} times")


def _produced_codes(response: Any) -> list[int]:
    return [int(first_error(response)[0])]


@dataclass(frozen=True, slots=True)
class Transact:
    """Sequential transactions of one producer per partition, until the count or the time limit is reached."""

    topic: Topic
    batch: bytes
    version: int
    transactions_max: int
    seconds_max: float
    aborts_every: int = 0  # one of so many

    def run(self) -> Pumped:
        done = [0]  # by all of them
        deadline = time.perf_counter() + self.seconds_max
        talks = [(Talk(), self._producer(index, deadline, done)) for index in range(len(self.topic.leaders))]
        try:
            elapsed_s = converse(talks)
        finally:
            for talk, _ in talks:
                talk.close()
        return Pumped(done[0], elapsed_s)

    def _producer(self, partition: int, deadline: float, done: list[int]) -> Conversation:
        producer = Producer(self.topic, partition, f"{self.topic.name}-{partition}", self.batch, self.version)
        yield from producer.start()
        for number in range(-(-self.transactions_max // len(self.topic.leaders))):
            if time.perf_counter() > deadline:
                break
            yield from producer.write()
            yield from producer.end(is_commit=not self.aborts_every or (number + 1) % self.aborts_every > 0)
            done[0] += 1


@dataclass(frozen=True, slots=True)
class Opened:
    """The cost of many concurrently open transactions, and of committing them."""

    open_s: float
    commit_s: float
    open_cpu_s: float | None
    commit_cpu_s: float | None
    memory_bytes: int | None  # more than before they came


@dataclass(frozen=True, slots=True)
class OpenMany:
    """Many producers with their own connections: all open a transaction, then all commit."""

    topic: Topic
    batch: bytes
    producers: int
    server_pid: int | None

    def run(self) -> Opened:
        allow_descriptors(len({*self.topic.leaders}) * self.producers + DESCRIPTORS_SPARE)
        partitions = len(self.topic.leaders)
        producers = [
            Producer(self.topic, number % partitions, f"{self.topic.name}-{number}", self.batch, 2)
            for number in range(self.producers)
        ]
        talks = [Talk() for _ in producers]
        with ExitStack() as stack:
            for talk in talks:
                stack.callback(talk.close)
            cpu_s, memory_bytes = self._cpu_s(), self._memory_bytes()
            open_s = converse(zip(talks, [_open(each) for each in producers], strict=True))
            opened_cpu_s, opened_bytes = self._cpu_s(), self._memory_bytes()
            self._count_open()
            counted_cpu_s = self._cpu_s()
            commit_s = converse(zip(talks, [each.end() for each in producers], strict=True))
            return Opened(
                open_s,
                commit_s,
                _difference(cpu_s, opened_cpu_s),
                _difference(counted_cpu_s, self._cpu_s()),
                None if memory_bytes is None or opened_bytes is None else opened_bytes - memory_bytes,
            )

    def _count_open(self) -> None:
        """Count the open transactions; a single broker coordinates them all."""
        if self.server_pid is None:
            return
        found: list[str] = []
        talk = Talk()
        try:
            converse([(talk, self._list(found))])
        finally:
            talk.close()
        if len(found) != self.producers:
            raise CommandError(f"{self.producers} transactions were to be open, and {len(found)} are")

    def _list(self, found: list[str]) -> Conversation:
        request = messages.ListTransactionsRequest(state_filters=["Ongoing"])
        response = yield from ask(self.topic.leaders[0], request, LIST_VERSION)
        found += [
            each.transactional_id
            for each in response.transaction_states
            if each.transactional_id.startswith(self.topic.name)
        ]

    def _cpu_s(self) -> float | None:
        return None if self.server_pid is None else processes.cpu_s(self.server_pid)

    def _memory_bytes(self) -> int | None:
        return None if self.server_pid is None else processes.memory_bytes(self.server_pid)


def _open(producer: Producer) -> Conversation:
    yield from producer.start()
    yield from producer.write()


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
