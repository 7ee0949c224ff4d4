"""Reads an offset range through librdkafka: for TLS and SASL, and as a reference for tests.

Slower than raw fetches, because every record becomes a Python object.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import OFFSET_END, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from pyspark_moldau.codec import columns
from pyspark_moldau.codec.decoder import ROWS_MAX
from pyspark_moldau.options.source_options import SourceOptions
from pyspark_moldau.source.offset_ranges import OffsetRange
from pyspark_moldau.source.read_plan import RecordsLost

log = logging.getLogger("pyspark_moldau")

_POLL_S: Final = 0.5
_WATERMARKS_S_MAX: Final = 30.0
_OUT_OF_RANGE: Final = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})


def read_with_librdkafka(wanted: OffsetRange, options: SourceOptions) -> Iterator[Any]:
    """Yield the rows of the range as Arrow batches."""
    settings = {
        **options.kafka.librdkafka,
        "group.id": options.reading_group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed" if options.kafka.reads_committed else "read_uncommitted",
    }
    consumer = Consumer(settings)
    try:
        yield from _rows(consumer, wanted, options)
    finally:
        consumer.close()


def _rows(consumer: Consumer, wanted: OffsetRange, options: SourceOptions) -> Iterator[Any]:
    consumer.assign([Position(wanted.topic, wanted.partition, wanted.from_offset)])
    deadline_s = time.monotonic() + options.poll_timeout_ms / 1000
    is_done = False
    while not is_done:
        messages: list[Any] = consumer.consume(ROWS_MAX, _POLL_S)
        rows = [each for each in messages if each.error() is None and each.offset() < wanted.until_offset]
        is_done = len(rows) < len(messages) and _reaches_end(messages, consumer, wanted, options)
        is_done = is_done or _position(consumer, wanted) >= wanted.until_offset
        if rows:
            yield _batch(rows, wanted, options)
        if rows:
            deadline_s = time.monotonic() + options.poll_timeout_ms / 1000
        elif not is_done and time.monotonic() > deadline_s:
            if _is_truncated(consumer, wanted, options):
                return
            raise TimeoutError(
                f"No record received from {wanted.topic}-{wanted.partition} within {options.poll_timeout_ms} ms."
            )


def _is_truncated(consumer: Consumer, wanted: OffsetRange, options: SourceOptions) -> bool:
    """Whether the log ends before the range, if data loss is tolerated."""
    if options.fails_on_data_loss:
        return False
    here = Position(wanted.topic, wanted.partition)
    _, latest = consumer.get_watermark_offsets(here, timeout=_WATERMARKS_S_MAX)
    if latest >= wanted.until_offset:
        return False
    what = (
        f"{wanted.topic}-{wanted.partition} was to be read up to offset {wanted.until_offset} but now ends at {latest}"
    )
    log.warning("Some records may have been lost: %s.", what)
    return True


def _reaches_end(messages: list[Any], consumer: Consumer, wanted: OffsetRange, options: SourceOptions) -> bool:
    """Whether a message lies behind the range."""
    return any(
        each.offset() >= wanted.until_offset
        if each.error() is None
        else _ends_range(each.error(), each, consumer, wanted, options)
        for each in messages
    )


def _ends_range(
    error: KafkaError, message: Any, consumer: Consumer, wanted: OffsetRange, options: SourceOptions
) -> bool:
    """Whether an error ends the range."""
    if error.code() == KafkaError._PARTITION_EOF:
        return bool(message.offset() >= wanted.until_offset)
    if error.code() not in _OUT_OF_RANGE:
        if error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN:
            return False
        raise KafkaException(error)
    here = Position(wanted.topic, wanted.partition)
    earliest, latest = consumer.get_watermark_offsets(here, timeout=_WATERMARKS_S_MAX)
    what = f"{wanted.topic}-{wanted.partition} has offsets {earliest} to {latest}, not {wanted.from_offset}"
    if options.fails_on_data_loss:
        raise RecordsLost(f"Some records may have been lost: {what}. Set 'failOnDataLoss' to false to continue anyway.")
    log.warning("Some records may have been lost: %s.", what)
    if not wanted.from_offset <= earliest < wanted.until_offset:
        return True
    consumer.assign([Position(wanted.topic, wanted.partition, earliest)])
    return False


def _position(consumer: Consumer, wanted: OffsetRange) -> int:
    (place,) = consumer.position([Position(wanted.topic, wanted.partition)])
    return int(place.offset) if place.offset >= 0 else OFFSET_END


def _batch(messages: list[Any], wanted: OffsetRange, options: SourceOptions) -> Any:
    stamps = [message.timestamp() for message in messages]
    made = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(wanted.topic, pa.string()), len(messages)),
        pa.repeat(pa.scalar(wanted.partition, pa.int32()), len(messages)),
        pa.array([message.offset() for message in messages], pa.int64()),
        # librdkafka reports "not available" for timestamp -1.
        pa.array([(at if kind else -1) * 1000 for kind, at in stamps], pa.int64()).view(pa.timestamp("us", "UTC")),
        pa.array([int(kind == TIMESTAMP_LOG_APPEND_TIME) for kind, _ in stamps], pa.int32()),
    ]
    if options.includes_headers:
        made.append(pa.array([_headers(message.headers()) for message in messages], columns.HEADERS))
    return pa.RecordBatch.from_arrays(made, schema=columns.schema(with_headers=options.includes_headers))


def _headers(headers: list[tuple[str, bytes | None]] | None) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None
