"""Settings of a partition's log: Kafka's topic configs, with Kafka's names and defaults."""

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
    return "a policy must not be repeated" if len(set(policies)) < len(policies) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """Segment size, retention and validation of a partition's log.

    The constructor does not validate; text from outside goes through `LogSettings.parse`.
    """

    # Retention
    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        ("delete",),
        one_of=("compact", "delete"),
        check=_no_duplicates,
        doc="What happens to old records: delete drops whole segments by age and size, compact keeps the last "
        "record of each key, both can be combined, and an empty list keeps everything.",
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

    # Segments
    segment_bytes: int = setting(
        "segment.bytes",
        GiB,
        kind=Kind.INT,
        at_least=KiB,  # Kafka requires 1 MiB; small segments are useful in tests and harmless
        doc="The log rolls when the active segment would exceed this size.",
    )
    segment_ms: int = setting(
        "segment.ms",
        7 * DAY_MS,
        at_least=1,
        doc="The log rolls when the active segment reaches this age, full or not.",
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
        doc="The log rolls when an index of the active segment would exceed this size.",
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
        doc="Overrides segment.bytes, for tests.",
    )
    preallocate: bool = setting(
        "preallocate",
        False,
        doc="Preallocate the whole size of a new segment on disk.",
    )

    errors_deadletterqueue_group_enable: bool = setting(
        "errors.deadletterqueue.group.enable",
        False,
        doc="Whether share groups may use this topic as their dead-letter topic.",
    )

    # Flush
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
        doc="Sync the log to disk when a record has been unsynced this long.",
    )

    # Validation
    max_message_bytes: int = setting(
        "max.message.bytes",
        MiB + 12,
        kind=Kind.INT,
        at_least=0,
        doc="Maximum size of a record batch on the wire.",
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
        doc="A record whose timestamp is further than this in the past is rejected (CreateTime only).",
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        at_least=0,
        doc="A record whose timestamp is further than this in the future is rejected (CreateTime only).",
    )
    record_validation: str = setting(
        "moldau.record.validation",
        "sampled",
        one_of=("header", "sampled", "full"),
        doc="Which produced batches have their records decoded and validated: none, so that headers decide; the first "
        "of each producer, a random sample, and all after an invalid one; or all. Topics that are compacted or limit "
        "timestamps always validate all.",
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

    # Replication
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        1,
        kind=Kind.INT,
        at_least=1,
        doc="A produce with acks=all is rejected while fewer replicas than this are in sync.",
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        doc="Elect an out-of-sync replica as leader if no other is available, at the cost of lost records.",
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

    # Tiered storage is not supported: the names are accepted so that tools that set them work
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
        """Parse settings by topic config name, and validate them individually and together."""
        settings = parse_settings(cls, texts)
        settings.check()
        return settings

    def check(self) -> None:
        """Reject conflicting combinations."""
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
        """Return the level for `compression_type`, or None if the codec has none."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def stores_batches_unchanged(self) -> bool:
        """Whether the header is all that must be known before a batch is appended."""
        return self.keeps_producer_compression and not self.validates_all_records and not self.has_log_append_time

    @property
    def validates_all_records(self) -> bool:
        """Whether every record of every batch is decoded before the append."""
        return self.record_validation == "full" or self.is_compacted or self.limits_timestamps

    @property
    def limits_timestamps(self) -> bool:
        """Whether the topic bounds timestamps more than by default. A header has no min timestamp, so any lower bound
        takes the records. For the upper bound the header's max timestamp is enough, if it is what the records say:
        under the default bound, and a wider one, that is believed."""
        return not self.has_log_append_time and (
            self.message_timestamp_before_max_ms < LONG_MAX or self.message_timestamp_after_max_ms < HOUR_MS
        )

    @property
    def segment_bytes_max(self) -> int:
        return self.internal_segment_bytes or self.segment_bytes

    @property
    def segment_ms_max(self) -> int:
        """Compaction skips the active segment, so a limit on its lag limits the segment's age too."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def acknowledges_after_sync(self) -> bool:
        """Whether a produce is acknowledged only after a sync."""
        return self.flush_messages == 1
