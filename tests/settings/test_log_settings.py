"""Log settings of topics: bounds, conflicts, derived values."""

import pytest

from moldau.model.errors import InvalidConfig
from moldau.model.units import DAY_MS, HOUR_MS, GiB
from moldau.storage.settings import LogSettings


def test_log_defaults_are_kafkas() -> None:
    settings = LogSettings()
    assert (settings.segment_bytes, settings.segment_ms, settings.retention_ms) == (GiB, 7 * DAY_MS, 7 * DAY_MS)
    assert (settings.index_interval_bytes, settings.max_message_bytes) == (4096, 1048588)
    assert settings.message_timestamp_after_max_ms == HOUR_MS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "compost"),
        ("cleanup.policy", "delete,delete"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("flush.messages", "0"),
        ("follower.replication.throttled.replicas", "1-2"),
        ("max.compaction.lag.ms", "0"),
        ("max.message.bytes", "-1"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.insync.replicas", "0"),
        ("preallocate", "maybe"),
        ("retention.ms", "-2"),
        ("segment.bytes", "1023"),
        ("segment.bytes", "2147483648"),
        ("segment.ms", "0"),
    ],
)
def test_values_out_of_bounds_are_rejected(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        LogSettings.parse({name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,delete"),
        ("compression.gzip.level", "-1"),
        ("compression.zstd.level", "-131072"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,12:3"),
        ("retention.ms", "-1"),
        ("segment.bytes", "1024"),
    ],
)
def test_values_at_their_bounds_are_accepted(name: str, text: str) -> None:
    LogSettings.parse({name: text})


def test_conflicting_compaction_lags_are_rejected() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(5\) > max\.compaction\.lag\.ms \(4\)"):
        LogSettings.parse({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


def test_remote_storage_cannot_be_enabled() -> None:
    with pytest.raises(InvalidConfig, match="Tiered Storage"):
        LogSettings.parse({"remote.storage.enable": "true"})


def test_cleanup_policy_is_parsed() -> None:
    both, none = LogSettings(cleanup_policy=("compact", "delete")), LogSettings(cleanup_policy=())
    assert (both.is_compacted, both.is_deleted) == (True, True)
    assert (none.is_compacted, none.is_deleted) == (False, False)


def test_compacted_segment_rolls_within_max_compaction_lag() -> None:
    assert LogSettings(segment_ms=100, max_compaction_lag_ms=10).segment_ms_max == 100
    assert LogSettings(segment_ms=100, max_compaction_lag_ms=10, cleanup_policy=("compact",)).segment_ms_max == 10


def test_compression_level_is_that_of_the_codec() -> None:
    settings = LogSettings(compression_type="zstd", compression_zstd_level=7)
    assert (settings.compression_level, settings.keeps_producer_compression) == (7, False)
    assert LogSettings(compression_type="snappy").compression_level is None
    assert LogSettings().keeps_producer_compression


def test_flush_of_every_message_precedes_the_acknowledgement() -> None:
    assert LogSettings(flush_messages=1).acknowledges_after_sync
    assert not LogSettings().acknowledges_after_sync


def test_tests_may_have_tiny_segments() -> None:
    assert LogSettings.parse({"internal.segment.bytes": "100"}).segment_bytes_max == 100
    assert LogSettings().segment_bytes_max == GiB
