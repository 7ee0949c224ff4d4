"""Validation of a produced batch against the topic's settings. Records are decoded only if necessary."""

from typing import Final

from moldau.model.errors import MessageTooLarge
from moldau.model.units import KiB
from moldau.records.compression import Compression
from moldau.records.conversion import recompress
from moldau.records.header import (
    BASE_TIMESTAMP_FIELD,
    MAX_TIMESTAMP_FIELD,
    BatchHeader,
    Buffer,
    read_header,
)
from moldau.records.validation import (
    correct_max_timestamp,
    lacks_max_timestamp,
    validate_keys,
    validate_produced,
    validate_timestamps,
)
from moldau.storage.log import Log
from moldau.storage.settings import LogSettings

ZSTD_FROM_VERSION: Final = 7
LIGHT_BYTES: Final = 64 * KiB  # at most so much is decoded on the event loop
_AS_PRODUCED: Final = "producer"
_CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


ValidatedBatch = tuple[memoryview, BatchHeader]


def accept(records: memoryview, log: Log, now_ms: int, api_version: int) -> ValidatedBatch | None:
    """Return the batch as it is appended; raises the error for the producer.

    None if its records must be decoded and are too many to do so on the event loop: then `RecordValidator` takes over.
    """
    settings = log.settings
    if len(records) > settings.max_message_bytes:
        _check_size(records, settings)
    header = validate_produced(records, is_zstd_allowed=api_version >= ZSTD_FROM_VERSION)
    if log.stores_batches_unchanged:
        # Fast path of nearly every batch: both timestamps are in order and within the topic's bounds.
        oldest, newest = header[BASE_TIMESTAMP_FIELD], header[MAX_TIMESTAMP_FIELD]
        if (
            now_ms - settings.message_timestamp_before_max_ms <= oldest <= newest
            and newest <= now_ms + settings.message_timestamp_after_max_ms
        ):
            return records, header
    if needs_record_validation(header, settings):
        if len(records) > LIGHT_BYTES:
            return None
        try:
            records, header = _validate_records(records, header, settings)
        except MessageTooLarge:
            return None
    check_timestamps(header, settings, now_ms)
    return records, header


def needs_record_validation(header: BatchHeader, settings: LogSettings) -> bool:
    """Whether records must be decoded; for most batches the header is enough."""
    return (
        is_in_other_codec(header, settings)
        or "compact" in settings.cleanup_policy
        or (lacks_max_timestamp(header) and not settings.has_log_append_time)
    )


def is_in_other_codec(header: BatchHeader, settings: LogSettings) -> bool:
    return settings.compression_type != _AS_PRODUCED and header.compression != _CODECS[settings.compression_type]


def check_timestamps(header: BatchHeader, settings: LogSettings, now_ms: int) -> None:
    if not settings.has_log_append_time:  # otherwise the log sets the timestamps
        validate_timestamps(
            header, now_ms, settings.message_timestamp_before_max_ms, settings.message_timestamp_after_max_ms
        )


def _validate_records(records: memoryview, header: BatchHeader, settings: LogSettings) -> ValidatedBatch:
    if is_in_other_codec(header, settings):
        records = in_topic_codec(records, settings, LIGHT_BYTES)
        header = read_header(records)
    if "compact" in settings.cleanup_policy:
        validate_keys(records, LIGHT_BYTES)
    if lacks_max_timestamp(header) and not settings.has_log_append_time:
        header = correct_max_timestamp(records, LIGHT_BYTES)
    return records, header


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
