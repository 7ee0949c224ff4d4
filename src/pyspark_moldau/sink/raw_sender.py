"""Sends encoded batches in one transaction with Moldau's client, one request in flight per partition."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import pyarrow as pa

from moldau.client.async_client import AsyncClient
from moldau.client.errors import RETRIABLE, ConnectionLost, ResponseTimeout, Unreachable
from moldau.client.partitioner import partition_for_key
from moldau.client.settings import ClientSettings
from moldau.client.transactional_producer import TransactionalProducer
from moldau.model.errors import ErrorCode, KafkaError, UnknownTopicOrPartition
from moldau.model.ids import NO_EPOCH, TopicPartition
from moldau.model.ports import Buffer
from moldau.model.units import MiB
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.records.builder import assemble_batch
from moldau.records.header import TRANSACTIONAL
from pyspark_moldau.client_security import security_of
from pyspark_moldau.options.sink_options import SinkOptions
from pyspark_moldau.sink.sender import CommitRejected, DeliveryFailed, ProducerFenced
from pyspark_moldau.topic_lookup import look_up_topic

log = logging.getLogger("pyspark_moldau")

Make: TypeAlias = Callable[[], tuple[Buffer, int]]  # returns the batch with the next sequence, and its record count

_FEATURE: Final = "transaction.version"
_FEATURE_V2: Final = 2
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_IN_FLIGHT_BYTES_MAX: Final = 32 * MiB
_TURNS_TO_SEND: Final = 3  # iterations of the event loop until a request is written to the socket
_REQUEST_MS: Final = 30_000
_DELIVERY_MS: Final = 120_000
_FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable)


def sink_client(options: SinkOptions) -> AsyncClient:
    """Create a client that requests auto-creation of topics."""
    kafka = options.kafka
    settings = ClientSettings(
        client_id=kafka.java.get("client.id", "moldau-spark"),
        request_timeout_ms=kafka.number("request.timeout.ms", _REQUEST_MS),
        total_timeout_ms=kafka.number("delivery.timeout.ms", _DELIVERY_MS),
        retry_backoff_ms=kafka.number("retry.backoff.ms", 100),
        retry_backoff_max_ms=kafka.number("retry.backoff.max.ms", 1000),
        allow_auto_create_topics=True,
        security=security_of(kafka),
    )
    return AsyncClient(SocketNetwork(), SystemClock(), system_random(), kafka.bootstrap_servers, settings=settings)


class PartitionCounts:
    """Partition counts of topics, cached per task."""

    def __init__(self, options: SinkOptions) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = sink_client(options)

    def __call__(self, topic: str) -> int:
        try:
            return len(self._loop.run_until_complete(look_up_topic(self._client, topic)).partitions)
        except UnknownTopicOrPartition as error:
            raise DeliveryFailed(
                f"A record for {topic} was not delivered: the topic does not exist and is not created automatically."
            ) from error

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


class RawSender:
    """A transactional producer for batches that tasks have encoded."""

    def __init__(self, options: SinkOptions, transactional_id: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = sink_client(options)
        self._id, self._timeout_ms = transactional_id, timeout_ms
        self._producer: TransactionalProducer | None = None
        self._last: dict[TopicPartition, asyncio.Task[None]] = {}
        self._in_flight: dict[asyncio.Task[None], int] = {}
        self._in_flight_bytes = 0
        self._failure: BaseException | None = None
        self._is_aborting = False

    def initialise(self) -> None:
        self._run(self._initialise())

    def begin(self) -> None:
        self._last.clear()
        self._is_aborting = False
        self._run(asyncio.sleep(0))  # process connections closed since the last batch

    def produce(self, batches: Iterable[pa.RecordBatch], after_batch: Callable[[], None]) -> int:
        """Enqueue batches from `batch_builder`."""
        rows = 0
        for staged in batches:
            for batch in staged.to_pylist():
                self._enqueue_staged(batch)
                rows += batch["rows"]
            self._drive_loop()
            after_batch()
        return rows

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        try:
            view = self._run(look_up_topic(self._client, topic))
        except _FAILURES as error:
            raise _delivery_error(topic, error) from error
        place = TopicPartition(topic, partition_for_key(key, len(view.partitions)))
        record = (int(time.time() * 1000), key, value, ())
        self._enqueue(place, lambda: (self._transactional.batch(place, [record]), 1), len(value))

    def flush(self, seconds_max: float) -> None:
        deadline = time.monotonic() + seconds_max
        while self._in_flight:
            if not self._wait(max(deadline - time.monotonic(), 0.0)):
                raise DeliveryFailed(f"{len(self._in_flight)} batches were not acknowledged within {seconds_max:g} s.")
        self._check()

    def commit(self, seconds_max: float) -> None:  # noqa: ARG002
        try:
            self._run(self._transactional.end(is_commit=True))
        except KafkaError as error:
            if error.code in _FENCED:
                raise ProducerFenced(str(error)) from error
            if error.code in RETRIABLE:  # an earlier attempt may have succeeded
                raise
            raise CommitRejected(str(error)) from error

    def abort(self, seconds_max: float) -> None:
        self._drain(seconds_max)
        if not self._last:
            return  # nothing was sent, so the coordinator has no open transaction
        try:
            self._run(self._transactional.end(is_commit=False))
        except KafkaError as error:
            if error.code in _FENCED:
                raise ProducerFenced(str(error)) from error
            raise

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self._client.close())
            self._loop.close()

    @property
    def _transactional(self) -> TransactionalProducer:
        assert self._producer is not None, "initialise() must be called first"
        return self._producer

    async def _initialise(self) -> None:
        is_v1 = await self._client.feature(_FEATURE) < _FEATURE_V2
        self._producer = TransactionalProducer(self._client, self._id, timeout_ms=self._timeout_ms, is_v1=is_v1)
        await self._producer.initialise()

    def _enqueue_staged(self, batch: dict[str, Any]) -> None:
        place = TopicPartition(batch["topic"], batch["partition"])
        self._enqueue(place, lambda: (self._assembled(place, batch), batch["rows"]), len(batch["body"]))

    def _drive_loop(self) -> None:
        """Run the event loop briefly, so that requests and responses proceed while more batches are read."""
        for _ in range(_TURNS_TO_SEND):
            self._run(asyncio.sleep(0))

    def _enqueue(self, place: TopicPartition, make: Make, size_bytes: int) -> None:
        task = self._last[place] = self._loop.create_task(self._deliver(place, make, self._last.get(place)))
        self._in_flight[task] = size_bytes
        self._in_flight_bytes += size_bytes
        while self._in_flight_bytes > _IN_FLIGHT_BYTES_MAX:
            self._wait(None)
            self._check()

    async def _deliver(self, place: TopicPartition, make: Make, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before  # one in flight, so that a retry cannot be appended after its successor
        if self._is_aborting:
            raise DeliveryFailed(f"A record for {place} was not delivered: the transaction is aborted.")
        try:
            await self._transactional.send_batch(place, *make())
        except _FAILURES as error:
            raise _delivery_error(str(place), error) from error

    def _assembled(self, place: TopicPartition, batch: dict[str, Any]) -> Buffer:
        producer, rows = self._transactional, batch["rows"]
        return assemble_batch(
            batch["body"],
            base_offset=0,
            leader_epoch=NO_EPOCH,
            attributes=batch["codec"] | TRANSACTIONAL,
            last_offset_delta=rows - 1,
            base_timestamp=batch["base_timestamp"],
            max_timestamp=batch["max_timestamp"],
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.epoch,
            base_sequence=producer.next_sequence(place),
            records_count=rows,
        )

    def _drain(self, seconds_max: float) -> None:
        """Stop sending and wait for requests in flight: none may arrive after the end of its transaction."""
        self._is_aborting = True
        if self._in_flight:
            self._run(asyncio.wait(self._in_flight, timeout=seconds_max))
            for task in self._in_flight:
                task.cancel()
            self._run(asyncio.gather(*self._in_flight, return_exceptions=True))
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._failure = None

    def _wait(self, seconds_max: float | None) -> bool:
        """Wait until a delivery completes or fails; False on timeout."""
        waiting = asyncio.wait(self._in_flight, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
        done, _ = self._run(waiting)
        for task in done:
            self._in_flight_bytes -= self._in_flight.pop(task)
            failure = task.exception()  # retrieve every exception; the first is raised
            self._failure = self._failure or failure
        return bool(done)

    def _check(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)


def _delivery_error(where: str, error: Exception) -> DeliveryFailed | ProducerFenced:
    words = f"A record for {where} was not delivered: {error}"
    return ProducerFenced(words) if isinstance(error, KafkaError) and error.code in _FENCED else DeliveryFailed(words)
