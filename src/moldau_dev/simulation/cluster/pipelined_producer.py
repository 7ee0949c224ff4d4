"""Producers with several batches in flight that handle errors like librdkafka's idempotent producer.

Unacknowledged batches are retried in order with their sequence numbers. Only OUT_OF_ORDER_SEQUENCE_NUMBER starts a new
producer epoch, in which the same records are sent again as new ones. So a broker that reports a gap after it has itself
rejected the first batch duplicates any record of it that was appended.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from moldau.client import requests
from moldau.client.async_client import AsyncClient
from moldau.client.errors import STALE_METADATA, error_of
from moldau.client.leader_requests import partitions_of, version_limit
from moldau.client.link import Link
from moldau.client.metadata import TopicView
from moldau.client.types import ProducerIdentity
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address, NodeId
from moldau.model.ports import Ports
from moldau.model.protocol import ACKS_ALL
from moldau.records.builder import build_batch
from moldau_dev.simulation.workload import PADDING_BYTES_MAX, RECORDS_MAX, Ledger, Violation, client

IN_FLIGHT_MAX: Final = 5  # the number of batches that a broker remembers per producer
RETRIES_S: Final = (0.005, 0.02, 0.1)
SPREADS_S: Final = (0.0, 0.002, 0.02)  # between two batches of a burst
PAUSES_S: Final = (0.5, 1.5)


class NumberBatch(NamedTuple):
    """An unacknowledged batch, the same in every retry."""

    first: int
    size: int
    padding_bytes: int
    timestamp_ms: int

    @property
    def end(self) -> int:
        return self.first + self.size


class PipelinedProducer:
    """Like `NumberProducer`, with up to five batches in flight per partition. Each has its own producer id."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], ledger: Ledger, rng: random.Random, tally: Counter[str]
    ) -> None:
        self.should_stop = False
        self._ports, self._ledger, self._rng, self._tally = ports, ledger, rng, tally
        self._client = client(ports, bootstrap, "producer")

    async def run(self) -> None:
        async with self._client, asyncio.TaskGroup() as group:
            for partition in range(self._ledger.partitions):
                pipeline = PartitionPipeline(self._client, partition, self._ledger, self._rng, self._tally)
                group.create_task(pipeline.run(self._ports.clock.wall_ms, lambda: self.should_stop))


class PartitionPipeline:
    """The batches for one partition, in order."""

    def __init__(
        self, client: AsyncClient, partition: int, ledger: Ledger, rng: random.Random, tally: Counter[str]
    ) -> None:
        self._client, self._partition, self._ledger, self._rng = client, partition, ledger, rng
        self._tally = tally
        self._waiting: deque[NumberBatch] = deque()
        self._end = 0  # the next number to send
        self._identity = ProducerIdentity(-1, -1)
        self._epoch_first = 0  # the number whose sequence number is 0
        self._retry_s = rng.choice(RETRIES_S)
        self._spread_s = rng.choice(SPREADS_S)
        self._pause_s_max = rng.choice(PAUSES_S)

    async def run(self, wall_ms: Callable[[], int], is_over: Callable[[], bool]) -> None:
        while not is_over() or self._waiting:
            try:
                if not self._waiting:
                    self._fill(wall_ms())
                await self._send_and_receive()
            except (OSError, KafkaError) as error:
                if not isinstance(error, KafkaError) or error.code in STALE_METADATA:
                    self._client.metadata.forget(self._ledger.topic)
                await self._ledger.back_off(error, self._retry_s)
            else:
                await asyncio.sleep(self._rng.uniform(0.0, self._pause_s_max))

    def _fill(self, now_ms: int) -> None:
        for _ in range(self._rng.randint(1, IN_FLIGHT_MAX)):
            size, padding_bytes = self._rng.randint(1, RECORDS_MAX), self._rng.randint(0, PADDING_BYTES_MAX)
            self._waiting.append(NumberBatch(self._end, size, padding_bytes, now_ms))
            self._end += size

    async def _send_and_receive(self) -> None:
        """Send all waiting batches in order on one connection, then handle the responses in order."""
        if self._identity.producer_id < 0:
            self._identity = await self._client.init_producer_id()
        topic = await self._client.topic(self._ledger.topic)
        leader = self._client.metadata.leader(self._ledger.topic, self._partition).leader
        link = await self._client._link_to(NodeId(leader))
        responses: list[tuple[NumberBatch, asyncio.Future[Any]]] = []
        try:
            await self._send_waiting(link, topic, responses)
            await asyncio.wait([response for _, response in responses])
        except asyncio.CancelledError:  # the run has failed elsewhere
            for _, response in responses:
                response.cancel()
            raise
        self._handle([(numbers, _outcome(response)) for numbers, response in responses])

    async def _send_waiting(
        self, link: Link, topic: TopicView, responses: "list[tuple[NumberBatch, asyncio.Future[Any]]]"
    ) -> None:
        for numbers in self._waiting:
            batch = self._encode(numbers)
            request = requests.produce(
                topic, self._partition, batch, ACKS_ALL, self._client.settings.request_timeout_ms, None
            )
            responses.append((numbers, link.send(request, version_at_most=version_limit(request))))
            if self._spread_s:
                await asyncio.sleep(self._rng.uniform(0.0, self._spread_s))

    def _handle(self, outcomes: "list[tuple[NumberBatch, int | OSError | KafkaError]]") -> None:
        """Record all acknowledgements, then raise the first error."""
        head, is_gap = self._waiting[0], False
        errors: list[OSError | KafkaError] = []
        for numbers, outcome in outcomes:
            if isinstance(outcome, int):
                self._acknowledge(numbers, outcome)
            elif isinstance(outcome, KafkaError) and outcome.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._check_gap(numbers, head, errors)
                is_gap = True
            else:
                errors.append(outcome)
        if is_gap and self._waiting:
            self._start_epoch()
        elif errors:
            raise errors[0]

    def _check_gap(self, numbers: NumberBatch, head: NumberBatch, errors: "list[OSError | KafkaError]") -> None:
        where = f"{self._ledger.topic}-{self._partition}"
        if numbers is head or numbers is self._waiting[0]:
            raise Violation(f"{where}: a gap was reported before {numbers.first}, but no batch is missing")
        if any(isinstance(each, KafkaError) and each.code == ErrorCode.NOT_LEADER_OR_FOLLOWER for each in errors):
            raise Violation(
                f"{where}: a gap was reported before {numbers.first} by a broker that rejected {head.first} itself"
            )

    def _acknowledge(self, numbers: NumberBatch, base_offset: int) -> None:
        """Also drop earlier batches: sequences have no gaps, so they are appended whatever their own response was."""
        self._ledger.acknowledge(self._partition, base_offset, numbers.first, numbers.size)
        while self._waiting and self._waiting[0].first <= numbers.first:
            self._waiting.popleft()

    def _start_epoch(self) -> None:
        """After a gap: send all unacknowledged batches as new ones."""
        self._tally["producer epochs"] += 1
        self._identity = ProducerIdentity(self._identity.producer_id, self._identity.epoch + 1)
        self._epoch_first = self._waiting[0].first

    def _encode(self, numbers: NumberBatch) -> bytes:
        padding = bytes(numbers.padding_bytes)
        records = [
            (numbers.timestamp_ms, b"%d" % number, b"%d" % number + padding, ())
            for number in range(numbers.first, numbers.end)
        ]
        batch = build_batch(
            records,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=numbers.first - self._epoch_first,
        )
        return bytes(batch)


def _outcome(response: "asyncio.Future[Any]") -> int | OSError | KafkaError:
    """Return the base offset, or the error."""
    error = response.exception()
    if error is None:
        ((_, partition),) = partitions_of(response.result())
        if partition.error_code == ErrorCode.NONE:
            return int(partition.base_offset)
        return error_of(partition.error_code, partition.error_message)
    if isinstance(error, OSError | KafkaError):
        return error
    raise error
