"""The effective value of a setting, and its description in DescribeConfigs."""

import pytest

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.declarations import BROKER_SETTINGS, TOPIC_SETTINGS
from moldau.broker.configs.resolution import (
    BrokerTexts,
    ConfigSource,
    DescribedSetting,
    describe_broker,
    describe_cluster,
    describe_group,
    describe_topic,
    effective_broker_settings,
    effective_log_settings,
)
from moldau.broker.configs.topic_defaults import SYNONYMS, log_defaults
from moldau.model.errors import InvalidConfig
from moldau.model.settings import Kind
from moldau.model.units import HOUR_MS, MINUTE_MS
from moldau.storage.settings import LogSettings


def _topic(name: str, overrides: dict[str, str], broker: BrokerTexts) -> DescribedSetting:
    (described,) = describe_topic(overrides, broker, [name])
    return described


def _broker(name: str, broker: BrokerTexts) -> DescribedSetting:
    (described,) = describe_broker(broker, [name])
    return described


# Precedence


@pytest.mark.parametrize(
    ("texts", "retention_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log.retention.hours": "2"}, 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 3 * MINUTE_MS),
        ({"log.retention.ms": "4", "log.retention.hours": "2", "log.retention.minutes": "3"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_finest_unit_of_retention_wins(texts: dict[str, str], retention_ms: int) -> None:
    assert log_defaults(texts).retention_ms == retention_ms


@pytest.mark.parametrize(
    ("texts", "segment_ms", "jitter_ms"),
    [
        ({"log.roll.hours": "2", "log.roll.jitter.hours": "1"}, 2 * HOUR_MS, HOUR_MS),
        ({"log.roll.hours": "2", "log.roll.ms": "9", "log.roll.jitter.ms": "8"}, 9, 8),
    ],
)
def test_finest_unit_of_rolling_wins(texts: dict[str, str], segment_ms: int, jitter_ms: int) -> None:
    defaults = log_defaults(texts)
    assert (defaults.segment_ms, defaults.segment_jitter_ms) == (segment_ms, jitter_ms)


def test_flush_interval_falls_back_to_the_scheduler_interval() -> None:
    assert log_defaults({"log.flush.scheduler.interval.ms": "7"}).flush_ms == 7
    assert log_defaults({"log.flush.scheduler.interval.ms": "7", "log.flush.interval.ms": "5"}).flush_ms == 5


def test_every_synonym_maps_a_topic_setting_to_a_broker_setting() -> None:
    for topic_name, synonyms in SYNONYMS.items():
        assert topic_name in TOPIC_SETTINGS
        assert all(synonym.name in BROKER_SETTINGS for synonym in synonyms)


def test_broker_default_invalid_for_topics_is_rejected() -> None:
    for texts in (
        {"log.retention.ms": "0"},
        {"log.cleaner.max.compaction.lag.ms": "1", "log.cleaner.min.compaction.lag.ms": "2"},
    ):
        with pytest.raises(InvalidConfig):
            log_defaults(texts)


def test_topic_value_overrides_the_broker_default() -> None:
    settings = effective_log_settings({"retention.ms": "5"}, LogSettings(retention_ms=9, segment_bytes=4096))
    assert (settings.retention_ms, settings.segment_bytes) == (5, 4096)


def test_invalid_stored_value_is_reported_and_ignored() -> None:
    errors: list[InvalidConfig] = []
    settings = effective_log_settings({"retention.ms": "soon", "segment.bytes": "2048"}, LogSettings(), errors.append)
    assert settings == LogSettings(segment_bytes=2048)
    assert "retention.ms" in str(errors[0])


def test_per_broker_value_wins_over_cluster_wide_and_file() -> None:
    static = {"max.connections": "1", "max.connections.per.ip": "1", "log.retention.ms": "1"}
    cluster = {"max.connections": "2", "max.connections.per.ip": "2"}
    settings = effective_broker_settings(BrokerTexts({"max.connections": "3"}, cluster, static))
    assert (settings.max_connections, settings.max_connections_per_ip) == (3, 2)
    assert settings.log_defaults.retention_ms == 1


def test_invalid_dynamic_value_keeps_the_file_value() -> None:
    errors: list[InvalidConfig] = []
    broker = BrokerTexts({"max.connections": "-5", "node.id": "9"}, {}, {"node.id": "4", "max.connections": "7"})
    settings = effective_broker_settings(broker, errors.append)
    assert (settings.node_id, settings.max_connections) == (4, 7)
    assert len(errors) == 1


def test_conflicting_dynamic_values_are_ignored() -> None:
    errors: list[InvalidConfig] = []
    lags = {"log.cleaner.max.compaction.lag.ms": "1", "log.cleaner.min.compaction.lag.ms": "2"}
    settings = effective_broker_settings(BrokerTexts(cluster=lags), errors.append)
    assert settings == BrokerSettings()
    assert errors


@pytest.mark.parametrize(
    "static", [{}, {"log.cleaner.max.compaction.lag.ms": "1"}], ids=["each other", "what the broker has from its file"]
)
@pytest.mark.proves("T1", part="configure")
def test_conflicting_values_do_not_affect_others(static: dict[str, str]) -> None:
    later = {"log.cleaner.min.compaction.lag.ms": "2", "message.max.bytes": "5000"}
    if not static:
        later["log.cleaner.max.compaction.lag.ms"] = "1"
    settings = effective_broker_settings(BrokerTexts(cluster=later, static=static))
    assert settings.log_defaults.max_message_bytes == 5000
    assert settings.log_defaults.min_compaction_lag_ms == 0


def test_broker_id_is_the_old_name_of_node_id() -> None:
    assert BrokerSettings.parse({"broker.id": "7"}).node_id == 7
    assert BrokerSettings.parse({"broker.id": "7", "node.id": "7"}).node_id == 7
    with pytest.raises(InvalidConfig, match=r"broker\.id"):
        BrokerSettings.parse({"broker.id": "7", "node.id": "8"})


def test_address_may_have_its_own_connection_limit() -> None:
    settings = BrokerSettings.parse({"max.connections.per.ip": "5", "max.connections.per.ip.overrides": "a:1, ::1:2"})
    assert [settings.connections_max_of(host) for host in ("a", "::1", "b")] == [1, 2, 5]
    for text in ("a", "a:x", ":4", "a:-1"):
        with pytest.raises(InvalidConfig, match="address:limit"):
            BrokerSettings.parse({"max.connections.per.ip.overrides": text})


def test_request_budget_fits_at_least_one_request() -> None:
    with pytest.raises(InvalidConfig, match=r"socket\.request\.max\.bytes"):
        BrokerSettings.parse({"queued.max.request.bytes": "1000"})
    assert BrokerSettings.parse({"queued.max.request.bytes": "-1"}).queued_max_request_bytes == -1


def test_metrics_listener_is_an_address_or_empty() -> None:
    assert BrokerSettings.parse({"moldau.metrics.listener": "localhost:9404"}).metrics_listener == "localhost:9404"
    with pytest.raises(InvalidConfig, match=r"moldau\.metrics\.listener"):
        BrokerSettings.parse({"moldau.metrics.listener": "9404"})


# DescribeConfigs


def test_topic_config_synonyms_are_ordered_by_precedence() -> None:
    broker = BrokerTexts({"log.retention.ms": "2"}, {"log.retention.ms": "3"}, {"log.retention.hours": "4"})
    described = _topic("retention.ms", {"retention.ms": "1"}, broker)
    assert (described.value, described.source, described.kind) == ("1", ConfigSource.DYNAMIC_TOPIC, Kind.LONG)
    assert [tuple(each) for each in described.synonyms] == [
        ("retention.ms", "1", 1),
        ("log.retention.ms", "2", 2),
        ("log.retention.ms", "3", 3),
        ("log.retention.hours", "4", 4),
        ("log.retention.hours", "168", 5),
    ]


@pytest.mark.parametrize(
    ("broker", "value", "source"),
    [
        (BrokerTexts(), "604800000", ConfigSource.DEFAULT),
        (BrokerTexts(static={"log.retention.hours": "1"}), "3600000", ConfigSource.STATIC_BROKER),
        (BrokerTexts(cluster={"log.retention.ms": "5"}), "5", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (BrokerTexts({"log.retention.ms": "6"}, {"log.retention.ms": "5"}), "6", ConfigSource.DYNAMIC_BROKER),
    ],
)
def test_topic_without_a_value_shows_the_broker_value(broker: BrokerTexts, value: str, source: ConfigSource) -> None:
    described = _topic("retention.ms", {}, broker)
    assert (described.value, described.source, described.is_read_only) == (value, source, False)


def test_topic_config_without_broker_setting_has_no_synonyms_until_set() -> None:
    described = _topic("remote.storage.enable", {}, BrokerTexts())
    assert (described.value, described.source, described.synonyms) == ("false", ConfigSource.DEFAULT, ())


def test_internal_settings_are_listed_only_by_name() -> None:
    names = [each.name for each in describe_topic({}, BrokerTexts())]
    assert "cleanup.policy" in names
    assert "internal.segment.bytes" not in names
    assert len(names) == len(TOPIC_SETTINGS) - 1
    assert describe_topic({}, BrokerTexts(), []) == describe_topic({}, BrokerTexts())
    assert _topic("internal.segment.bytes", {}, BrokerTexts()).value is None


def test_unknown_names_are_omitted_and_duplicates_listed_once() -> None:
    assert describe_topic({}, BrokerTexts(), ["nothing", "num.partitions"]) == []
    assert len(describe_topic({}, BrokerTexts(), ["retention.ms", "retention.ms"])) == 1


def test_broker_setting_has_its_read_only_flag() -> None:
    broker = BrokerTexts(static={"num.partitions": "3", "message.max.bytes": "5"})
    assert _broker("num.partitions", broker).is_read_only
    assert _broker("num.partitions", broker).source is ConfigSource.STATIC_BROKER
    assert not _broker("message.max.bytes", broker).is_read_only
    assert _broker("message.max.bytes", broker).value == "5"


def test_secret_value_is_never_returned() -> None:
    broker = BrokerTexts(static={"ssl.key.password": "hunter2", "listener.name.x.sasl.jaas.config": "hunter2"})
    for name in broker.static:
        described = _broker(name, broker)
        assert described.is_sensitive
        assert "hunter2" not in repr(described)
    assert "hunter2" not in repr(describe_broker(broker))


def test_broker_settings_include_listener_settings() -> None:
    names = [each.name for each in describe_broker(BrokerTexts(static={"listener.name.x.ssl.keystore.location": "f"}))]
    assert "num.network.threads" in names
    assert "listener.name.x.ssl.keystore.location" in names
    assert "server.max.startup.time.ms" not in names


def test_cluster_wide_settings_are_only_those_set() -> None:
    (described,) = describe_cluster({"log.retention.ms": "5"})
    assert (described.name, described.value) == ("log.retention.ms", "5")
    assert described.source is ConfigSource.DYNAMIC_DEFAULT_BROKER
    assert describe_cluster({}) == []


def test_group_shows_its_values_and_defaults() -> None:
    described = {each.name: each for each in describe_group({"consumer.session.timeout.ms": "50000"})}
    assert described["consumer.session.timeout.ms"].source is ConfigSource.GROUP
    assert described["consumer.heartbeat.interval.ms"].value == "5000"
