"""What rules the offsets topic, and when a group's lag is worth a warning."""

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
    """How `__consumer_offsets` is made, when the first group needs it, and how it is read at a start."""

    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        50,
        kind=Kind.INT,
        at_least=1,
        doc="How many partitions the offsets topic gets; who looks after a group depends on it, so it never changes.",
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        3,
        kind=Kind.SHORT,
        at_least=1,
        at_most=SHORT_MAX,
        doc="How many replicas the offsets topic gets; fewer, with a warning, where there are fewer brokers.",
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        100 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The segment.bytes of the offsets topic, never less than what one change of a group may take (32 MiB).",
    )
    offsets_topic_compression_codec: int = setting(
        "offsets.topic.compression.codec",
        0,
        kind=Kind.INT,
        check=_codec,
        doc="The codec of what is written to the offsets topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How long an answer about a group waits until what it rests on is on the replicas of the offsets topic.",
    )
    offsets_load_buffer_size: int = setting(
        "offsets.load.buffer.size",
        5 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="How many bytes of the offsets topic are read at once when it is loaded.",
    )


@dataclass(frozen=True, kw_only=True)
class LagSettings:
    """When a group that falls behind is mentioned in the log."""

    lag_warning_ms: int = setting(
        "moldau.group.lag.warning.ms",
        5 * MINUTE_MS,
        at_least=0,
        doc="A group whose lag has grown for this long is named in a warning; 0 warns of none.",
    )
