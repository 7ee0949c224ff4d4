"""Producers that have several batches on their way at once, and take errors as librdkafka's idempotent producer does.

What is not acknowledged is sent again in order, with the sequence numbers that it had. Only a gap makes a producer
begin a new epoch: then it sends the same records once more, as new ones. So a broker that tells of a gap where it has
itself sent the first batch away has doubled whatever of it was there.
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

IN_FLIGHT_MAX: Final = 5  # as many as a broker remembers of a producer
RETRIES_S: Final = (0.005, 0.02, 0.1)
SPREADS_S: Final = (0.0, 0.002, 0.02)  # between two batches of a burst
PAUSES_S: Final = (0.5, 1.5)


class Numbers(NamedTuple):
    """A batch that is not acknowledged yet: from its first number on, however often it is sent."""

    first: int
    size: int
    padding_bytes: int
    timestamp_ms: int

    @property
    def end(self) -> int:
        return self.first + self.size


class PipelinedProducer:
    """As `NumberProducer`, with up to five batches under way to each partition. Each has a producer id of its own."""

    def __init__(
        self, ports: Ports, bootstrap: list[Address], ledger: Ledger, chance: random.Random, tally: Counter[str]
    ) -> None:
        self.should_stop = False
        self._ports, self._ledger, self._chance, self._tally = ports, ledger, chance, tally
        self._client = client(ports, bootstrap, "producer")

    async def run(self) -> None:
        async with self._client, asyncio.TaskGroup() as group:
            for partition in range(self._ledger.partitions):
                lane = Lane(self._client, partition, self._ledger, self._chance, self._tally)
                group.create_task(lane.run(self._ports.clock.wall_ms, lambda: self.should_stop))


class Lane:
    """One partition: what is to be sent to it, in order, and how far that has come."""

    def __init__(
        self, client: AsyncClient, partition: int, ledger: Ledger, chance: random.Random, tally: Counter[str]
    ) -> None:
        self._client, self._partition, self._ledger, self._chance = client, partition, ledger, chance
        self._tally = tally
        self._waiting: deque[Numbers] = deque()
        self._end = 0  # of all that was ever waiting
        self._identity = ProducerIdentity(-1, -1)
        self._epoch_first = 0  # the number whose sequence number is 0
        self._retry_s = chance.choice(RETRIES_S)
        self._spread_s = chance.choice(SPREADS_S)
        self._pause_s_max = chance.choice(PAUSES_S)

    async def run(self, wall_ms: Callable[[], int], is_over: Callable[[], bool]) -> None:
        while not is_over() or self._waiting:
            try:
                if not self._waiting:
                    self._fill(wall_ms())
                await self._exchange()
            except (OSError, KafkaError) as error:
                if not isinstance(error, KafkaError) or error.code in STALE_METADATA:
                    self._client.metadata.forget(self._ledger.topic)
                await self._ledger.bear(error, self._retry_s)
            else:
                await asyncio.sleep(self._chance.uniform(0.0, self._pause_s_max))

    def _fill(self, now_ms: int) -> None:
        for _ in range(self._chance.randint(1, IN_FLIGHT_MAX)):
            size, padding_bytes = self._chance.randint(1, RECORDS_MAX), self._chance.randint(0, PADDING_BYTES_MAX)
            self._waiting.append(Numbers(self._end, size, padding_bytes, now_ms))
            self._end += size

    async def _exchange(self) -> None:
        """All that waits, in order on one connection to one leader; then hear what became of it, in order."""
        if self._identity.producer_id < 0:
            self._identity = await self._client.init_producer_id()
        topic = await self._client.topic(self._ledger.topic)
        leader = self._client.metadata.leader(self._ledger.topic, self._partition).leader
        link = await self._client._link_to(NodeId(leader))
        answers: list[tuple[Numbers, asyncio.Future[Any]]] = []
        try:
            await self._send_waiting(link, topic, answers)
            await asyncio.wait([answer for _, answer in answers])
        except asyncio.CancelledError:  # the run has failed elsewhere: nobody will ask what became of these
            for _, answer in answers:
                answer.cancel()
            raise
        self._hear([(numbers, _outcome(answer)) for numbers, answer in answers])

    async def _send_waiting(
        self, link: Link, topic: TopicView, answers: "list[tuple[Numbers, asyncio.Future[Any]]]"
    ) -> None:
        for numbers in self._waiting:
            batch = self._encode(numbers)
            request = requests.produce(
                topic, self._partition, batch, ACKS_ALL, self._client.settings.request_timeout_ms, None
            )
            answers.append((numbers, link.ask(request, version_at_most=version_limit(request))))
            if self._spread_s:
                await asyncio.sleep(self._chance.uniform(0.0, self._spread_s))

    def _hear(self, outcomes: "list[tuple[Numbers, int | OSError | KafkaError]]") -> None:
        """Raises the first thing that went wrong, when all that went well is noted."""
        head, is_gap = self._waiting[0], False
        troubles: list[OSError | KafkaError] = []
        for numbers, outcome in outcomes:
            if isinstance(outcome, int):
                self._acknowledge(numbers, outcome)
            elif isinstance(outcome, KafkaError) and outcome.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._judge_gap(numbers, head, troubles)
                is_gap = True
            else:
                troubles.append(outcome)
        if is_gap and self._waiting:
            self._begin_epoch()
        elif troubles:
            raise troubles[0]

    def _judge_gap(self, numbers: Numbers, head: Numbers, troubles: "list[OSError | KafkaError]") -> None:
        where = f"{self._ledger.topic}-{self._partition}"
        if numbers is head or numbers is self._waiting[0]:
            raise Violation(f"{where}: a gap before {numbers.first}, and nothing before it is missing")
        if any(isinstance(each, KafkaError) and each.code == ErrorCode.NOT_LEADER_OR_FOLLOWER for each in troubles):
            raise Violation(f"{where}: a gap before {numbers.first}, by a broker that has just sent away {head.first}")

    def _acknowledge(self, numbers: Numbers, base_offset: int) -> None:
        """What was sent before it is there too, though its own answer may say otherwise: sequences have no gaps."""
        self._ledger.acknowledge(self._partition, base_offset, numbers.first, numbers.size)
        while self._waiting and self._waiting[0].first <= numbers.first:
            self._waiting.popleft()

    def _begin_epoch(self) -> None:
        """A gap: all that is not acknowledged is sent as if it was new."""
        self._tally["producer epochs"] += 1
        self._identity = ProducerIdentity(self._identity.producer_id, self._identity.epoch + 1)
        self._epoch_first = self._waiting[0].first

    def _encode(self, numbers: Numbers) -> bytes:
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


def _outcome(answer: "asyncio.Future[Any]") -> int | OSError | KafkaError:
    """The offset that was answered, or what went wrong."""
    error = answer.exception()
    if error is None:
        ((_, partition),) = partitions_of(answer.result())
        if partition.error_code == ErrorCode.NONE:
            return int(partition.base_offset)
        return error_of(partition.error_code, partition.error_message)
    if isinstance(error, OSError | KafkaError):
        return error
    raise error
