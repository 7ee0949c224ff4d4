"""Settings of the share state topic."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import SHORT_MAX, Kind, setting
from moldau.model.units import SECOND_MS, MiB
from moldau.records.compression import Compression

CODECS: Final = tuple(int(codec) for codec in Compression)
SEGMENT_BYTES_MIN: Final = 4 * MiB  # a decision, which may write many snapshots, must fit into a segment


def _codec(value: int) -> str | None:
    return None if value in CODECS else f"it must be one of {', '.join(map(str, CODECS))}"


@dataclass(frozen=True, kw_only=True)
class ShareStateTopicSettings:
    """Creation and loading of `__share_group_state`."""

    share_coordinator_state_topic_num_partitions: int = setting(
        "share.coordinator.state.topic.num.partitions",
        50,
        kind=Kind.INT,
        at_least=1,
        doc="Partitions of the share state topic.",
    )
    share_coordinator_state_topic_replication_factor: int = setting(
        "share.coordinator.state.topic.replication.factor",
        3,
        kind=Kind.SHORT,
        at_least=1,
        at_most=SHORT_MAX,
        doc="Replication factor of the share state topic.",
    )
    share_coordinator_state_topic_min_isr: int = setting(
        "share.coordinator.state.topic.min.isr",
        2,
        kind=Kind.SHORT,
        at_least=1,
        doc="Minimum ISR of the share state topic.",
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        "share.coordinator.state.topic.segment.bytes",
        100 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="Segment size of the share state topic.",
    )
    share_coordinator_state_topic_compression_codec: int = setting(
        "share.coordinator.state.topic.compression.codec",
        0,
        kind=Kind.INT,
        check=_codec,
        doc="The codec of the share state topic.",
    )
    share_coordinator_load_buffer_size: int = setting(
        "share.coordinator.load.buffer.size",
        5 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="Read size when share state is loaded.",
    )
    share_coordinator_write_timeout_ms: int = setting(
        "share.coordinator.write.timeout.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Timeout of a write of share state.",
    )
