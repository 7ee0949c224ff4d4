"""The settings that govern one partition's log: Kafka's topic settings, with Kafka's names and defaults."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.model.errors import InvalidConfig
from moldau.model.settings import LONG_MAX, Kind, parse_settings, setting
from moldau.model.units import DAY_MS, HOUR_MS, MINUTE_MS, GiB, KiB, MiB

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_THROTTLED_REPLICA: Final = re.compile(r"\d+:\d+")


def _throttled_replicas(replicas: tuple[str, ...]) -> str | None:
    if replicas in ((), ("*",)) or all(_THROTTLED_REPLICA.fullmatch(each) for each in replicas):
        return None
    return "it must be '*', empty, or a list of partition:replica pairs such as 0:1,2:1"


def _gzip_level(level: int) -> str | None:
    return None if level == -1 or 1 <= level <= 9 else "it must be -1 or between 1 and 9"


def _no_duplicates(policies: tuple[str, ...]) -> str | None:
    return "each policy may be named once" if len(set(policies)) < len(policies) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """How a partition's log is cut into segments, how long it is kept, and what it accepts.

    The constructor trusts its caller; text from outside goes through `LogSettings.parse`.
    """

    # What is kept, and for how long
    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        ("delete",),
        one_of=("compact", "delete"),
        check=_no_duplicates,
        doc="What happens to old records: delete drops whole segments by age and size, compact keeps the last "
        "record of each key, both may be named together, and an empty list keeps everything.",
    )
    retention_ms: int = setting(
        "retention.ms",
        7 * DAY_MS,
        at_least=-1,
        doc="A segment is deleted once its newest record is older than this; -1 sets no limit.",
    )
    retention_bytes: int = setting(
        "retention.bytes",
        -1,
        doc="The oldest segments of a partition are deleted while it holds more than this; -1 sets no limit.",
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        DAY_MS,
        at_least=0,
        doc="How long a tombstone of a compacted topic stays readable after it was compacted.",
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        0.5,
        at_least=0,
        at_most=1,
        doc="A log is compacted once this share of its bytes has not been compacted yet.",
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms",
        0,
        at_least=0,
        doc="A record is not compacted away before it has this age.",
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        LONG_MAX,
        at_least=1,
        doc="A record is offered to compaction at this age even when the log is hardly dirty.",
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        MINUTE_MS,
        at_least=0,
        doc="How long a deleted segment's files stay on disk for readers that still hold them.",
    )

    # How it is cut into files
    segment_bytes: int = setting(
        "segment.bytes",
        GiB,
        kind=Kind.INT,
        at_least=KiB,  # Kafka asks for 1 MiB; small segments are useful in tests and harmless here
        doc="A new segment is begun when the active one would grow beyond this size.",
    )
    segment_ms: int = setting(
        "segment.ms",
        7 * DAY_MS,
        at_least=1,
        doc="A new segment is begun when the active one is this old, full or not.",
    )
    segment_jitter_ms: int = setting(
        "segment.jitter.ms",
        0,
        at_least=0,
        doc="Up to this much is taken at random from segment.ms, so that partitions do not all roll at once.",
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        10 * MiB,
        kind=Kind.INT,
        at_least=4,
        doc="A new segment is begun when an index of the active one would grow beyond this size.",
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        4 * KiB,
        kind=Kind.INT,
        at_least=0,
        doc="An index entry is written about every this many bytes of log.",
    )
    internal_segment_bytes: int | None = setting(
        "internal.segment.bytes",
        None,
        kind=Kind.INT,
        at_least=14,
        is_internal=True,
        doc="Takes the place of segment.bytes, for tests.",
    )
    preallocate: bool = setting(
        "preallocate",
        False,
        doc="Reserve the whole size of a new segment on disk when it is made.",
    )

    # When it reaches the disk
    flush_messages: int = setting(
        "flush.messages",
        LONG_MAX,
        at_least=1,
        doc="Sync the log to disk after this many records; 1 acknowledges a produce only once it is synced, "
        "and produces that arrive during a sync share the next one.",
    )
    flush_ms: int = setting(
        "flush.ms",
        LONG_MAX,
        at_least=0,
        doc="Sync the log to disk when a record has waited this long for it.",
    )

    # What it accepts
    max_message_bytes: int = setting(
        "max.message.bytes",
        MiB + 12,
        kind=Kind.INT,
        at_least=0,
        doc="The largest record batch a producer may append, as it stands on the wire.",
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        "CreateTime",
        one_of=("CreateTime", "LogAppendTime"),
        doc="Whether records keep the producer's timestamp or get the time of their append.",
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        at_least=0,
        doc="A record whose timestamp lies further than this in the past is refused (CreateTime only).",
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        at_least=0,
        doc="A record whose timestamp lies further than this in the future is refused (CreateTime only).",
    )
    compression_type: str = setting(
        "compression.type",
        "producer",
        one_of=COMPRESSION_TYPES,
        doc="The codec batches are stored with: producer keeps what arrives, uncompressed unpacks it.",
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        -1,
        kind=Kind.INT,
        check=_gzip_level,
        doc="The level used when the broker itself compresses with gzip; -1 is the codec's own default.",
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        9,
        kind=Kind.INT,
        at_least=1,
        at_most=17,
        doc="The level used when the broker itself compresses with lz4.",
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        3,
        kind=Kind.INT,
        at_least=-131072,
        at_most=22,
        doc="The level used when the broker itself compresses with zstd.",
    )

    # How it is replicated
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        1,
        kind=Kind.INT,
        at_least=1,
        doc="A produce with acks=all is refused while fewer replicas than this are in sync.",
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        doc="Let a replica that is not in sync lead when no other can, at the price of lost records.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        "leader.replication.throttled.replicas",
        (),
        check=_throttled_replicas,
        doc="The partition:broker pairs, or * for all: a leader that is named sends to replicas that are not in sync "
        "no faster than its leader.replication.throttled.rate.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        "follower.replication.throttled.replicas",
        (),
        check=_throttled_replicas,
        doc="The partition:broker pairs, or * for all: a follower that is named and not in sync fetches no faster than "
        "its follower.replication.throttled.rate.",
    )

    # Tiered storage, which does not exist here: the names are accepted so that tools that set them work
    remote_storage_enable: bool = setting(
        "remote.storage.enable", False, has_effect=False, doc="Keep old segments of this topic in remote storage."
    )
    remote_log_copy_disable: bool = setting(
        "remote.log.copy.disable", False, has_effect=False, doc="Stop copying segments to remote storage."
    )
    remote_log_delete_on_disable: bool = setting(
        "remote.log.delete.on.disable",
        False,
        has_effect=False,
        doc="Delete the remote segments when remote storage is switched off for the topic.",
    )
    remote_copy_lag_ms: int = setting(
        "remote.copy.lag.ms",
        0,
        at_least=-1,
        has_effect=False,
        doc="How old a segment gets before it is copied to remote storage.",
    )
    remote_copy_lag_bytes: int = setting(
        "remote.copy.lag.bytes",
        0,
        at_least=-1,
        has_effect=False,
        doc="How many newer bytes a partition holds before a segment is copied to remote storage.",
    )
    local_retention_ms: int = setting(
        "local.retention.ms",
        -2,
        at_least=-2,
        has_effect=False,
        doc="How long a segment stays on local disk once it is in remote storage; -2 follows retention.ms.",
    )
    local_retention_bytes: int = setting(
        "local.retention.bytes",
        -2,
        at_least=-2,
        has_effect=False,
        doc="How many bytes stay on local disk once they are in remote storage; -2 follows retention.bytes.",
    )

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> "LogSettings":
        """Settings from texts by topic setting name, each within its bounds and at peace with the others."""
        settings = parse_settings(cls, texts)
        settings.check()
        return settings

    def check(self) -> None:
        """Refuse combinations that contradict each other."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"conflict topic config setting min.compaction.lag.ms ({self.min_compaction_lag_ms}) > "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )
        if self.remote_storage_enable:
            raise InvalidConfig(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention by age and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def has_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def keeps_producer_compression(self) -> bool:
        return self.compression_type == "producer"

    @property
    def compression_level(self) -> int | None:
        """The level for `compression_type`, or None where the codec has none."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def stores_batches_unchanged(self) -> bool:
        """Whether a batch's header says all that must be known before it is appended."""
        return self.keeps_producer_compression and not self.is_compacted and not self.has_log_append_time

    @property
    def segment_bytes_max(self) -> int:
        return self.internal_segment_bytes or self.segment_bytes

    @property
    def segment_ms_max(self) -> int:
        """Compaction skips the active segment, so a bound on its lag bounds the segment's age too."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def acknowledges_after_sync(self) -> bool:
        """Whether a produce is answered only once it is on disk."""
        return self.flush_messages == 1
