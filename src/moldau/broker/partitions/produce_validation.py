"""Validation of a produced batch against the topic's settings. Records are decoded only if necessary."""

from typing import Final

from moldau.broker.runtime.record_sampler import RecordSampler
from moldau.model.errors import KafkaError, MessageTooLarge
from moldau.model.units import KiB
from moldau.records.compression import Compression
from moldau.records.conversion import recompress
from moldau.records.header import (
    BASE_TIMESTAMP_FIELD,
    MAX_TIMESTAMP_FIELD,
    PRODUCER_ID_FIELD,
    BatchHeader,
    Buffer,
    read_header,
)
from moldau.records.validation import RecordRules, check_records, validate_produced, write_max_timestamp
from moldau.storage.log import Log
from moldau.storage.settings import LogSettings

ZSTD_FROM_VERSION: Final = 7
LIGHT_BYTES: Final = 128 * KiB  # at most so much is decoded on the event loop,
LIGHT_RECORDS: Final = 2_000  # and no more records than this
HEADER_ONLY: Final = "header"
_AS_PRODUCED: Final = "producer"
_CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


ValidatedBatch = tuple[memoryview, BatchHeader]


def accept(
    records: memoryview, log: Log, now_ms: int, api_version: int, sampler: RecordSampler
) -> ValidatedBatch | None:
    """Return the batch as it is appended; raises the error for the producer.

    The sampler is that of the connection.

    None if its records must be decoded and are too many to do so on the event loop: then `RecordValidator` takes over.
    """
    settings = log.settings
    if len(records) > settings.max_message_bytes:
        _check_size(records, settings)
    header = validate_produced(records, is_zstd_allowed=api_version >= ZSTD_FROM_VERSION)
    # Fast path of nearly every batch: its header is enough. A max timestamp beyond the bound is not, because the
    # response names the invalid records; nor is one below the base timestamp, which some clients leave unset.
    newest = header[MAX_TIMESTAMP_FIELD]
    if (
        header[BASE_TIMESTAMP_FIELD] <= newest <= now_ms + settings.message_timestamp_after_max_ms
        or settings.has_log_append_time
    ) and (log.stores_batches_unchanged or not needs_records(header, settings)):
        if settings.record_validation == HEADER_ONLY:
            return records, header
        sampler.countdown -= 1
        if sampler.countdown >= 0 and header[PRODUCER_ID_FIELD] in sampler.trusted:
            return records, header
    if len(records) > LIGHT_BYTES or header.records_count > LIGHT_RECORDS:
        return None
    try:
        accepted = _validate_records(records, header, settings, now_ms)
    except MessageTooLarge:
        return None
    except KafkaError:
        sampler.rejected(header.producer_id)
        raise
    sampler.accepted(header.producer_id)
    return accepted


def needs_records(header: BatchHeader, settings: LogSettings) -> bool:
    """Whether records must be decoded, whatever their timestamps are."""
    return settings.validates_all_records or is_in_other_codec(header, settings)


def is_in_other_codec(header: BatchHeader, settings: LogSettings) -> bool:
    return settings.compression_type != _AS_PRODUCED and header.compression != _CODECS[settings.compression_type]


def record_rules(settings: LogSettings, now_ms: int) -> RecordRules:
    bounds = None
    if not settings.has_log_append_time:  # otherwise the log sets the timestamps
        bounds = now_ms - settings.message_timestamp_before_max_ms, now_ms + settings.message_timestamp_after_max_ms
    return RecordRules(settings.is_compacted, bounds)


def _validate_records(records: memoryview, header: BatchHeader, settings: LogSettings, now_ms: int) -> ValidatedBatch:
    max_timestamp = check_records(records, record_rules(settings, now_ms), LIGHT_BYTES)
    if is_in_other_codec(header, settings):
        records = in_topic_codec(records, settings, LIGHT_BYTES)
        header = read_header(records)
    return records, with_max_timestamp(records, header, settings, max_timestamp)


def with_max_timestamp(
    records: memoryview, header: BatchHeader, settings: LogSettings, max_timestamp: int
) -> BatchHeader:
    """Correct the header's max timestamp where it is not that of the records."""
    if settings.has_log_append_time or header.max_timestamp == max_timestamp:
        return header
    return write_max_timestamp(records, max_timestamp)


def _check_size(records: memoryview, settings: LogSettings) -> None:
    if len(records) > settings.max_message_bytes:
        raise MessageTooLarge(
            f"The batch has {len(records)} bytes, more than max.message.bytes={settings.max_message_bytes}."
        )


def in_topic_codec(records: Buffer, settings: LogSettings, output_bytes_max: int) -> memoryview:
    """Recompress the batch with the topic's compression.type."""
    codec = _CODECS[settings.compression_type]
    levels = {
        Compression.GZIP: settings.compression_gzip_level,
        Compression.LZ4: settings.compression_lz4_level,
        Compression.ZSTD: settings.compression_zstd_level,
    }
    level = levels.get(codec)
    converted = memoryview(recompress(records, codec, level=level, output_bytes_max=output_bytes_max))
    _check_size(converted, settings)
    return converted
