"""Every setting with an effect is read by some code."""

import re
from functools import cache
from pathlib import Path

import pytest

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.tls_settings import TlsListenerSettings
from moldau.model.settings import declared
from moldau.storage.settings import LogSettings

SOURCES = Path(__file__).parents[2] / "src/moldau"

# Read under another name, by a method or property of their own class, or by a function beside it.
READ_BY_THEIR_CLASS = {
    "broker_id",
    "cordoned_log_dirs",
    "group_consumer_heartbeat_interval_ms",
    "group_consumer_max_heartbeat_interval_ms",
    "group_consumer_max_session_timeout_ms",
    "group_consumer_migration_policy",
    "group_consumer_min_heartbeat_interval_ms",
    "group_consumer_min_session_timeout_ms",
    "group_consumer_session_timeout_ms",
    "group_share_delivery_count_limit",
    "group_share_heartbeat_interval_ms",
    "group_share_max_delivery_count_limit",
    "group_share_max_heartbeat_interval_ms",
    "group_share_max_partition_max_record_locks",
    "group_share_max_record_lock_duration_ms",
    "group_share_max_session_timeout_ms",
    "group_share_min_delivery_count_limit",
    "group_share_min_heartbeat_interval_ms",
    "group_share_min_partition_max_record_locks",
    "group_share_min_record_lock_duration_ms",
    "group_share_min_session_timeout_ms",
    "group_share_partition_max_record_locks",
    "group_share_record_lock_duration_ms",
    "group_share_session_timeout_ms",
    "internal_segment_bytes",
    "log_dir",
    "log_dirs",
    "max_connections_per_ip",
    "max_connections_per_ip_overrides",
    "max_compaction_lag_ms",
    "message_timestamp_type",
    "replica_selector_class",
    "sasl_jaas_config",
    "sasl_server_callback_handler_class",
    "segment_bytes",
    "segment_ms",
}
# A partition has one replica, so it is always in sync, and no other broker can lead it.
TRUE_OF_A_SINGLE_BROKER = {"min_insync_replicas", "unclean_leader_election_enable"}

READ_AS_TEXTS = {*declared(TlsListenerSettings)}  # for each listener; tests/settings/test_tls_settings.py covers each


@cache
def _words_after_a_dot() -> frozenset[str]:
    texts = (path.read_text() for path in SOURCES.rglob("*.py") if path.name != "settings.py")
    return frozenset(word for text in texts for word in re.findall(r"\.([a-z0-9_]+)\b", text))


@pytest.mark.parametrize("owner", [BrokerSettings, LogSettings])
def test_setting_with_an_effect_is_read(owner: type) -> None:
    fields = {field for field, each in declared(owner).items() if each.has_effect}
    known = _words_after_a_dot() | READ_BY_THEIR_CLASS | TRUE_OF_A_SINGLE_BROKER | READ_AS_TEXTS
    assert fields - known == set()
