"""Sends records through librdkafka in order and tracks their delivery."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pyspark_moldau.options.sink_options import ROW_BYTES_MAX, SinkOptions
from pyspark_moldau.sink.records import find_missing_partitions, split_rejected
from pyspark_moldau.sink.sender import CommitRejected, DeliveryFailed, ProducerFenced

log = logging.getLogger("pyspark_moldau")

_ANY_PARTITION: Final = -1
_POLL_EVERY_ROWS: Final = 10_000
_ROOM_S: Final = 0.1
_FLUSH_S_MAX: Final = 900.0
_METADATA_S_MAX: Final = 60.0
_INIT_S_MAX: Final = 180.0
_CALL_S: Final = 30.0
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED})
# Secondary errors of records whose transaction failed because of another record.
_CONSEQUENCES: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE})
_DEFAULTS: Final[dict[str, str | bool]] = {
    "enable.idempotence": "true",
    "linger.ms": "20",
    "message.max.bytes": str(ROW_BYTES_MAX),
    "queue.buffering.max.kbytes": str(128 * 1024),
    "partitioner": "murmur2_random",  # the default of the Java clients
    "delivery.report.only.error": True,
    "log.connection.close": "false",  # brokers close idle connections
}


class LibrdkafkaSender:
    """A producer and its first delivery failure."""

    def __init__(self, options: SinkOptions, extra: Mapping[str, str] | None = None) -> None:
        self.failure: str | None = None
        self._has_cause = False
        self._dead_letter_topic = options.dead_letter_topic
        self._row_bytes_max = options.row_bytes_max
        settings: dict[str, str | bool] = {**_DEFAULTS, **options.kafka.librdkafka}
        if settings.get("acks") in ("0", "1"):
            settings["enable.idempotence"] = "false"
        self.producer = Producer({**settings, **(extra or {})}, on_delivery=self._on_failure, logger=log)

    def produce(self, batches: Iterable[pa.RecordBatch], after_batch: Callable[[], None] = lambda: None) -> int:
        """Enqueue records and return their number; delivery continues in the background."""
        rows = 0
        for batch in batches:
            for each in self._split_missing_partitions(batch):
                self._produce(each)
            rows += batch.num_rows
            after_batch()
        return rows

    def initialise(self) -> None:
        _retry(self.producer.init_transactions, _INIT_S_MAX)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def commit(self, seconds_max: float) -> None:
        try:
            _retry(self.producer.commit_transaction, seconds_max)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                raise CommitRejected(error.args[0].str()) from error
            raise _fenced_or(error) from error

    def abort(self, seconds_max: float) -> None:
        try:
            _retry(self.producer.abort_transaction, seconds_max)
        except KafkaException as error:
            raise _fenced_or(error) from error

    def close(self) -> None:
        """Release the producer; librdkafka closes it when it is garbage-collected."""

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._produce_record(topic, value, key, _ANY_PARTITION, {})

    def flush(self, seconds_max: float = _FLUSH_S_MAX) -> None:
        """Wait until every record is acknowledged."""
        deadline = time.monotonic() + seconds_max
        while len(self.producer) and time.monotonic() < deadline:
            self.producer.flush(_ROOM_S * 10)
            self.check()
        self.check()
        if len(self.producer):
            raise DeliveryFailed(f"{len(self.producer)} records were not acknowledged within {seconds_max:g} s.")

    def check(self) -> None:
        self.producer.poll(0)
        if self.failure is not None:
            raise DeliveryFailed(self.failure)

    def _split_missing_partitions(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Route rows for missing partitions to the dead-letter topic; without one, delivery fails later."""
        if self._dead_letter_topic is None:
            return [batch]
        rejected = find_missing_partitions(batch, self._partitions_of)
        return split_rejected(batch, rejected, self._dead_letter_topic, self._row_bytes_max) if rejected else [batch]

    def _partitions_of(self, topic: str) -> int | None:
        described = self.producer.list_topics(topic, timeout=_METADATA_S_MAX).topics[topic]
        return None if described.error is not None else len(described.partitions)

    def _produce(self, batch: pa.RecordBatch) -> None:
        topics = batch["topic"].dictionary.to_pylist()
        names = [topics[number] for number in batch["topic"].indices.to_pylist()]
        partitions = batch["partition"].fill_null(_ANY_PARTITION).to_pylist()
        extras = _extras(batch)
        for row, (value, key) in enumerate(zip(batch["value"].to_pylist(), batch["key"].to_pylist(), strict=True)):
            self._produce_record(names[row], value, key, partitions[row], extras[row] if extras else {})
            if row % _POLL_EVERY_ROWS == 0:
                self.check()

    def _produce_record(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, extra: dict[str, Any]
    ) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, partition, **extra)
                return
            except BufferError:  # queue full: wait for deliveries or timeouts
                self.producer.poll(_ROOM_S)
                self.check()
            except KafkaException as error:
                self.check()  # raises the root cause if an earlier record failed the transaction
                raise DeliveryFailed(_describe_failure(error.args[0], topic, partition)) from error

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        """Keep the first failure that is not a consequence of another one."""
        if error is None:
            return
        is_cause = error.code() not in _CONSEQUENCES
        if self.failure is None or (is_cause and not self._has_cause):
            self.failure, self._has_cause = (
                _describe_failure(error, message.topic() or "?", message.partition()),
                is_cause,
            )


def _fenced_or(error: KafkaException) -> Exception:
    cause = error.args[0]
    is_fenced = cause.code() in _FENCED or (cause.fatal() and "fenced" in cause.str().lower())
    return ProducerFenced(cause.str()) if is_fenced else error


def _retry(call: Callable[[float], Any], seconds_max: float) -> None:
    """Retry while the error is retriable."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            call(min(_CALL_S, max(deadline - time.monotonic(), 1.0)))
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def produce_all(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> int:
    """Produce at least once, without a transaction; return the number of acknowledged records."""
    sender = LibrdkafkaSender(options)
    try:
        rows = sender.produce(batches)
        sender.flush()
        return rows
    finally:
        sender.producer.purge()  # drop the remaining records after an error


def _extras(batch: pa.RecordBatch) -> list[dict[str, Any]] | None:
    """Return headers and timestamps of each record; None if the batch has neither."""
    rows = batch.num_rows
    if batch["headers"].null_count == rows and batch["timestamp_ms"].null_count == rows:
        return None
    return [
        _extra(headers, time_ms)
        for headers, time_ms in zip(batch["headers"].to_pylist(), batch["timestamp_ms"].to_pylist(), strict=True)
    ]


def _extra(headers: list[dict[str, Any]] | None, time_ms: int | None) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if headers:
        extra["headers"] = [(each["key"], each["value"]) for each in headers]
    if time_ms is not None:
        extra["timestamp"] = time_ms
    return extra


def _describe_failure(error: KafkaError, topic: str, partition: int | None) -> str:
    where = topic if partition is None or partition < 0 else f"{topic}-{partition}"
    match error.code():
        case KafkaError._UNKNOWN_PARTITION:
            return f"A record for {where} was not delivered: the partition does not exist."
        case KafkaError._UNKNOWN_TOPIC | KafkaError.UNKNOWN_TOPIC_OR_PART:
            return f"A record for {where} was not delivered: the topic does not exist and is not created automatically."
        case _:
            return f"A record for {where} was not delivered: {error.str()} ({error.name()})."
