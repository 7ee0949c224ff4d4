"""Every setting of Apache Kafka 4.x is accepted, with its type, default and update mode."""

from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.declarations import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, broker_setting
from moldau.broker.configs.topic_defaults import TOPIC_DEFAULTS
from moldau.model import kafka_settings
from moldau.model.settings import Scope, Setting, declared
from moldau.node.configuration import load_configuration

KNOWN = {"broker": BROKER_SETTINGS, "topic": TOPIC_SETTINGS, "group": GROUP_SETTINGS}

# Defaults that differ from Kafka's, for a single node on a laptop.
OTHER_DEFAULTS = {
    "advertised.listeners",
    "controller.listener.names",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "max.connections",
    "node.id",
    "process.roles",
    "queued.max.request.bytes",
    "socket.receive.buffer.bytes",
}
# Kafka opens and closes listeners at runtime; here they are fixed at the start.
FIXED_AT_START = {"listener.security.protocol.map", "listeners"}
# Settings of classes that ship with Kafka, which it reads without declaring them.
BEYOND_THE_LIST = {
    "allow.everyone.if.no.acl.found",
    "metrics.jmx.exclude",
    "metrics.jmx.include",
    "super.users",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "share.acquire.mode",  # a setting of Kafka's share consumers, here of their groups too
    "errors.deadletterqueue.auto.create.topics.enable",  # KIP-1191, of Kafka 4.4
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.group.enable",
    "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.topic.name.prefix",
    "share.order",
    "share.retry.backoff.factor",  # configs of share groups that Kafka does not have
    "share.retry.backoff.max.ms",
    "share.retry.backoff.ms",
}


class Fact(NamedTuple):
    resource: str
    name: str
    type: str
    scope: str
    visibility: str
    default: str


def _facts() -> list[Fact]:
    lines = Path(__file__).with_name("kafka-settings.txt").read_text().splitlines()
    return [Fact(*line.split(" ", 5)) for line in lines if not line.startswith("#")]


FACTS = _facts()


def _default_text(setting: Setting) -> str:
    text = setting.format(setting.default)
    return "-" if text is None else text or "(empty)"


def _is_same(ours: str, kafkas: str) -> bool:
    try:
        return float(ours) == float(kafkas)  # 1.0E10 is 10000000000.0
    except ValueError:
        return ours == kafkas


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.resource}-{fact.name}")
def test_kafka_setting_has_its_type_and_default(fact: Fact) -> None:
    setting = KNOWN[fact.resource][fact.name]
    assert setting.kind.name.lower() == fact.type
    assert setting.is_internal == (fact.visibility == "internal")
    if fact.name not in OTHER_DEFAULTS:
        assert _is_same(_default_text(setting), fact.default)
    if fact.resource == "broker" and fact.name not in FIXED_AT_START:
        assert setting.scope.value == fact.scope


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_default_is_valid_for_its_setting(known: dict[str, Setting]) -> None:
    for setting in known.values():
        text = setting.format(setting.default)
        if text:
            assert setting.parse(text) == setting.default, setting.name


def test_all_settings_are_kafkas_or_prefixed_moldau() -> None:
    names = {name for known in KNOWN.values() for name in known}
    ours = {name for name in names if name.startswith("moldau.")}
    assert names - ours - BEYOND_THE_LIST == {fact.name for fact in FACTS}


def test_setting_name_is_declared_once() -> None:
    own = {each.name for each in declared(BrokerSettings).values()}
    derived = set(TOPIC_DEFAULTS)
    without_effect = set(kafka_settings.BROKER_SETTINGS)
    assert not own & derived
    assert not own & without_effect
    assert not derived & without_effect


def test_every_setting_has_documentation() -> None:
    for known in KNOWN.values():
        for setting in known.values():
            assert setting.doc.endswith("."), setting.name
            assert setting.doc[0].isupper() or setting.doc[0] == "-", setting.name


def test_file_with_every_setting_at_its_kafka_default_loads() -> None:
    lines = [
        f"{fact.name}={fact.default}"
        for fact in FACTS
        if fact.resource == "broker" and not fact.default.startswith(("-", "("))
        if fact.name not in {"security.inter.broker.protocol", "broker.id"}
    ]
    configuration = load_configuration([("server.properties", "\n".join(lines))])
    assert configuration.settings.num_partitions == 1
    assert configuration.settings.log_defaults.retention_ms == 7 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("name", "is_sensitive", "scope"),
    [
        ("listener.name.internal.ssl.keystore.location", False, Scope.PER_BROKER),
        ("listener.name.internal.ssl.keystore.password", True, Scope.PER_BROKER),
        ("listener.name.internal.scram-sha-256.sasl.jaas.config", True, Scope.PER_BROKER),
        ("listener.name.internal.max.connections", False, Scope.CLUSTER),
        ("rsm.config.bucket.secret", True, Scope.STATIC),
        ("config.providers.file.class", True, Scope.STATIC),
    ],
)
def test_listener_and_plugin_settings_are_known(name: str, is_sensitive: bool, scope: Scope) -> None:
    setting = broker_setting(name)
    assert setting
    assert setting.has_effect is (".ssl." in name or ".sasl." in name)
    assert (setting.is_sensitive, setting.scope) == (is_sensitive, scope)


@pytest.mark.parametrize("name", ["listener.name.", "listener.name.x", "listener.name.x.nothing", "nothing", ""])
def test_other_names_are_unknown(name: str) -> None:
    assert broker_setting(name) is None


def test_very_long_name_is_unknown() -> None:
    assert broker_setting("rsm.config." + "x" * 1_000_000) is None
