"""Settings of the offsets topic, and of lag warnings."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import SHORT_MAX, Kind, setting
from moldau.model.units import MINUTE_MS, SECOND_MS, MiB
from moldau.records.compression import Compression

CODECS: Final = tuple(int(codec) for codec in Compression)


def _codec(value: int) -> str | None:
    return None if value in CODECS else f"it must be one of {', '.join(map(str, CODECS))}"


@dataclass(frozen=True, kw_only=True)
class OffsetsTopicSettings:
    """Creation and loading of `__consumer_offsets`."""

    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        50,
        kind=Kind.INT,
        at_least=1,
        doc="The number of partitions of the offsets topic; it maps groups to coordinators, so it never changes.",
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        3,
        kind=Kind.SHORT,
        at_least=1,
        at_most=SHORT_MAX,
        doc="The replication factor of the offsets topic; reduced, with a warning, if there are fewer brokers.",
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        100 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The segment.bytes of the offsets topic, at least the maximum size of one change of a group (32 MiB).",
    )
    offsets_topic_compression_codec: int = setting(
        "offsets.topic.compression.codec",
        0,
        kind=Kind.INT,
        check=_codec,
        doc="The compression codec of the offsets topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How long a response of the group coordinator waits until its records are replicated.",
    )
    offsets_load_buffer_size: int = setting(
        "offsets.load.buffer.size",
        5 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The bytes per read when a partition of the offsets topic is loaded.",
    )


@dataclass(frozen=True, kw_only=True)
class LagSettings:
    """Lag warnings."""

    lag_warning_ms: int = setting(
        "moldau.group.lag.warning.ms",
        5 * MINUTE_MS,
        at_least=0,
        doc="A warning is logged for a group whose lag has grown for this long; 0: never.",
    )
