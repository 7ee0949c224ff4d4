"""Changes that CreateTopics and AlterConfigs accept, and Kafka's error codes and messages."""

import pytest

from moldau.broker.configs.declarations import BROKER_SETTINGS, TOPIC_SETTINGS, nearest, without_effect
from moldau.broker.configs.validation import ConfigValidator, check_topic_settings
from moldau.machines.metadata.configs import ConfigRules
from moldau.machines.metadata.image import Resource, ResourceType
from moldau.model.errors import InvalidConfig, InvalidRequest
from moldau.storage.settings import LogSettings

TOPIC = Resource(ResourceType.TOPIC, "orders")
BROKER = Resource(ResourceType.BROKER, "1")
ALL_BROKERS = Resource(ResourceType.BROKER, "")
GROUP = Resource(ResourceType.GROUP, "readers")


def _check(resource: Resource, configs: dict[str, str], static: dict[str, str] | None = None) -> None:
    rules: ConfigRules = ConfigValidator(static)
    rules.check(resource, configs, configs.keys())


def test_topic_configs_override_defaults() -> None:
    settings = check_topic_settings({"cleanup.policy": "compact", "retention.ms": "5"}, LogSettings())
    assert settings == LogSettings(cleanup_policy=("compact",), retention_ms=5)


def test_unknown_name_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(
        InvalidConfig, match=r"^Unknown topic config name: retention\.sm\. Did you mean retention\.ms\?$"
    ):
        _check(TOPIC, {"retention.sm": "5"})
    with pytest.raises(InvalidRequest, match=r"^Unknown broker config name: log\.retention\.mss\. Did you mean"):
        _check(BROKER, {"log.retention.mss": "5"})


def test_dissimilar_name_gets_no_suggestion() -> None:
    with pytest.raises(InvalidConfig, match=r"^Unknown topic config name: zzz$"):
        _check(TOPIC, {"zzz": "5"})


def test_huge_name_gets_a_short_error() -> None:
    with pytest.raises(InvalidConfig) as error:
        _check(TOPIC, {"retention.ms" * 10_000: "5"})
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "configs", [{"retention.ms": "soon"}, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}]
)
def test_invalid_topic_config_values_are_rejected(configs: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        _check(TOPIC, configs)


def test_topic_config_may_conflict_with_broker_defaults() -> None:
    with pytest.raises(InvalidConfig, match="conflict"):
        _check(TOPIC, {"min.compaction.lag.ms": "10"}, static={"log.cleaner.max.compaction.lag.ms": "9"})


def test_invalid_stored_value_does_not_block_other_changes() -> None:
    configs = {"retention.ms": "-7", "gone": "x", "segment.bytes": "2048"}
    ConfigValidator().check(TOPIC, configs, {"segment.bytes", "deleted"})


@pytest.mark.parametrize(
    ("resource", "configs", "words"),
    [
        (BROKER, {"num.partitions": "3"}, "Cannot update these configs dynamically: num.partitions"),
        (ALL_BROKERS, {"node.id": "3"}, "Cannot update these configs dynamically: node.id"),
        (ALL_BROKERS, {"ssl.keystore.type": "PEM"}, "at default cluster level: ssl.keystore.type"),
        (BROKER, {"log.retention.ms": "never"}, "log.retention.ms"),
    ],
)
def test_static_broker_setting_cannot_be_changed(resource: Resource, configs: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _check(resource, configs)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("resource", "configs"),
    [
        (ALL_BROKERS, {"log.retention.ms": "5", "num.io.threads": "4"}),
        (BROKER, {"ssl.keystore.type": "PEM", "message.max.bytes": "5000"}),
        (BROKER, {"listener.name.x.ssl.keystore.location": "f", "leader.replication.throttled.rate": "5"}),
    ],
)
def test_dynamic_broker_setting_can_be_changed(resource: Resource, configs: dict[str, str]) -> None:
    _check(resource, configs)


def test_unknown_broker_setting_can_be_deleted() -> None:
    ConfigValidator().check(BROKER, {}, {"from.an.older.version"})


def test_group_setting_is_validated() -> None:
    _check(GROUP, {"share.auto.offset.reset": "by_duration:PT1H30M", "consumer.session.timeout.ms": "46000"})
    for configs in ({"share.auto.offset.reset": "by_duration:P"}, {"consumer.session.timeout.ms": "0"}, {"x": "1"}):
        with pytest.raises(InvalidConfig):
            _check(GROUP, configs)


@pytest.mark.proves("C2", part="the server-side protocol")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("consumer.session.timeout.ms", ["44999", "45000", "60000", "60001"]),
        ("consumer.heartbeat.interval.ms", ["4999", "5000", "15000", "15001"]),
    ],
)
def test_group_interval_out_of_bounds_is_rejected(name: str, values: list[str]) -> None:
    below, least, most, above = values
    for value in (least, most):
        _check(GROUP, {name: value})
    for value in (below, above):
        with pytest.raises(InvalidConfig, match=rf"^Invalid value {value} for configuration {name}: it must be from"):
            _check(GROUP, {name: value})
        ConfigValidator().check(GROUP, {name: value}, {"share.isolation.level"})  # an earlier version accepted it


def test_group_interval_bounds_come_from_the_node() -> None:
    static = {"group.consumer.min.session.timeout.ms": "6000", "group.consumer.max.heartbeat.interval.ms": "15000"}
    _check(GROUP, {"consumer.session.timeout.ms": "6000"}, static)
    with pytest.raises(InvalidConfig, match=r"must be greater than consumer\.heartbeat\.interval\.ms"):
        _check(GROUP, {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "6000"}, static)


def test_other_resources_have_no_configs() -> None:
    with pytest.raises(InvalidRequest):
        _check(Resource(ResourceType.BROKER_LOGGER, "1"), {})


def test_list_append_starts_from_the_effective_value() -> None:
    rules = ConfigValidator({"log.cleanup.policy": "compact", "metric.reporters": "a"})
    assert rules.is_list(TOPIC, "cleanup.policy")
    assert not rules.is_list(TOPIC, "retention.ms")
    assert not rules.is_list(TOPIC, "nothing")
    assert rules.default(TOPIC, "cleanup.policy") == "compact"
    assert rules.default(BROKER, "metric.reporters") == "a"
    assert rules.default(BROKER, "ssl.enabled.protocols") == "TLSv1.2,TLSv1.3"
    assert rules.default(TOPIC, "nothing") is None


def test_settings_without_effect_are_distinguished() -> None:
    assert without_effect(TOPIC_SETTINGS, ["retention.ms", "remote.log.copy.disable", "x"]) == [
        "remote.log.copy.disable"
    ]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("num.partition", "num.partitions"),
        ("log.retention.hour", "log.retention.hours"),
        ("Listeners", "listeners"),
        ("auto.create.topic.enable", "auto.create.topics.enable"),
        ("", None),
    ],
)
def test_nearest_name_is_found(name: str, match: str | None) -> None:
    assert nearest(name, BROKER_SETTINGS) == match
