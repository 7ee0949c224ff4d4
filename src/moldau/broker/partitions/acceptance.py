"""What a topic's settings ask of a produced batch. Records are decoded only where they must be."""

from typing import Final

from moldau.model.errors import MessageTooLarge
from moldau.records.compression import Compression
from moldau.records.conversion import recompress
from moldau.records.header import BatchHeader, read_header
from moldau.records.validation import (
    correct_max_timestamp,
    lacks_max_timestamp,
    validate_keys,
    validate_produced,
    validate_timestamps,
)
from moldau.storage.settings import LogSettings

ZSTD_FROM_VERSION: Final = 7
_AS_PRODUCED: Final = "producer"
_CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def accept(records: memoryview, settings: LogSettings, now_ms: int, api_version: int) -> tuple[memoryview, BatchHeader]:
    """The batch as it goes into the log; raises what the producer should hear."""
    _check_size(records, settings)
    header = validate_produced(records, is_zstd_allowed=api_version >= ZSTD_FROM_VERSION)
    if settings.compression_type != _AS_PRODUCED and header.compression != _CODECS[settings.compression_type]:
        records = _in_topic_codec(records, settings)
        header = read_header(records)
    if "compact" in settings.cleanup_policy:
        validate_keys(records)
    if settings.has_log_append_time:
        return records, header  # the log gives it its time
    if lacks_max_timestamp(header):
        header = correct_max_timestamp(records)
    validate_timestamps(
        header, now_ms, settings.message_timestamp_before_max_ms, settings.message_timestamp_after_max_ms
    )
    return records, header


def _check_size(records: memoryview, settings: LogSettings) -> None:
    if len(records) > settings.max_message_bytes:
        raise MessageTooLarge(
            f"The batch has {len(records)} bytes; this topic takes {settings.max_message_bytes} (max.message.bytes)."
        )


def _in_topic_codec(records: memoryview, settings: LogSettings) -> memoryview:
    codec = _CODECS[settings.compression_type]
    levels = {
        Compression.GZIP: settings.compression_gzip_level,
        Compression.LZ4: settings.compression_lz4_level,
        Compression.ZSTD: settings.compression_zstd_level,
    }
    converted = memoryview(recompress(records, codec, level=levels.get(codec)))
    _check_size(converted, settings)
    return converted
