"""Effective values of settings, their sources, and their descriptions for DescribeConfigs."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.client_metrics import CLIENT_METRICS_SETTINGS
from moldau.broker.configs.declarations import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, broker_setting
from moldau.broker.configs.topic_defaults import SYNONYMS, TOPIC_FIELDS
from moldau.model.errors import InvalidConfig
from moldau.model.settings import Kind, Scope, Setting, declared
from moldau.storage.settings import LogSettings

Texts = Mapping[str, str]
Report = Callable[[InvalidConfig], None]

NO_TEXTS: Final[Texts] = MappingProxyType({})


class ConfigSource(IntEnum):
    """The source of a value, by DescribeConfigs' number."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class BrokerTexts(NamedTuple):
    """The configured values of one broker by source, in order of precedence."""

    per_broker: Texts = NO_TEXTS  # AlterConfigs on this broker
    cluster: Texts = NO_TEXTS  # AlterConfigs on all brokers, the resource named ''
    static: Texts = NO_TEXTS  # files and flags at start

    def merged(self) -> dict[str, str]:
        return {**self.static, **self.cluster, **self.per_broker}


class DescribedSynonym(NamedTuple):
    """A source of the value, under its name there."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One entry of a DescribeConfigs response; the first synonym is the effective one."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    kind: Kind
    documentation: str
    synonyms: tuple[DescribedSynonym, ...]


# Effective values -----------------------------------------------------------------------------------------------------


def effective_log_settings(overrides: Texts, defaults: LogSettings, report: Report | None = None) -> LogSettings:
    """The settings of a topic's logs: its own where it has them, the broker's defaults elsewhere.

    Values were validated before they were stored. One that is no longer valid is reported and ignored: it must not keep
    a broker from serving the topic.
    """
    if not overrides:
        return defaults
    fields: dict[str, Any] = {}
    for field, each in declared(LogSettings).items():
        if each.name in overrides:
            try:
                fields[field] = each.parse(overrides[each.name])
            except InvalidConfig as error:
                _report(report, error)
    return dataclasses.replace(defaults, **fields)


def effective_broker_settings(texts: BrokerTexts, report: Report | None = None) -> BrokerSettings:
    """The settings of a running broker. Static values must be valid; invalid dynamic ones are reported and ignored."""
    static = BrokerSettings.parse(texts.static)
    dynamic = acceptable({**texts.cluster, **texts.per_broker}, report)
    if not dynamic:
        return static
    try:
        return BrokerSettings.parse({**texts.static, **dynamic})
    except InvalidConfig as error:
        _report(report, error)
        rest = {name: text for name, text in dynamic.items() if not _is_consistent(texts.static, dynamic, without=name)}
        return BrokerSettings.parse({**texts.static, **rest}) if _is_consistent(texts.static, rest) else static


def _is_consistent(static: Texts, dynamic: Texts, without: str = "") -> bool:
    """Whether the dynamic values are consistent, leaving out one of them."""
    try:
        BrokerSettings.parse({**static, **{name: text for name, text in dynamic.items() if name != without}})
    except InvalidConfig:
        return False
    return True


def acceptable(texts: Texts, report: Report | None = None) -> dict[str, str]:
    """Return the texts that are valid and may change while the broker runs."""
    accepted = {}
    for name, text in texts.items():
        setting = broker_setting(name)
        if setting is None or setting.scope is Scope.STATIC:
            continue
        try:
            setting.parse(text)
            accepted[name] = text
        except InvalidConfig as error:
            _report(report, error)
    return accepted


def _report(report: Report | None, error: InvalidConfig) -> None:
    if report:
        report(error)


# Descriptions ---------------------------------------------------------------------------------------------------------


def describe_topic(
    overrides: Texts, broker: BrokerTexts, names: Collection[str] | None = None
) -> list[DescribedSetting]:
    """Describe a topic's settings, all or the named ones; unknown names are omitted."""
    defaults = effective_broker_settings(broker).log_defaults
    effective = effective_log_settings(overrides, defaults)
    described = []
    for setting in _chosen(TOPIC_SETTINGS, names):
        synonyms = _synonyms([synonym.name for synonym in SYNONYMS.get(setting.name, ())], broker)
        if setting.name in overrides:
            own = DescribedSynonym(setting.name, overrides[setting.name], ConfigSource.DYNAMIC_TOPIC)
            synonyms = [own, *synonyms]
        value = setting.format(getattr(effective, TOPIC_FIELDS[setting.name]))
        described.append(_described(setting, value, synonyms, is_read_only=False))
    return described


def describe_broker(broker: BrokerTexts, names: Collection[str] | None = None) -> list[DescribedSetting]:
    """Describe a broker's settings, all or the named ones, including those of single listeners and plug-ins."""
    merged = broker.merged()
    known = dict(BROKER_SETTINGS)
    known.update({name: each for name in merged if name not in known and (each := broker_setting(name))})
    described = []
    for setting in _chosen(known, names):
        synonyms = _synonyms([setting.name], broker)
        value = merged.get(setting.name, setting.format(setting.default))
        described.append(_described(setting, value, synonyms, is_read_only=setting.scope is Scope.STATIC))
    return described


def describe_cluster(cluster: Texts, names: Collection[str] | None = None) -> list[DescribedSetting]:
    """Describe the cluster-wide dynamic values: the resource named ''."""
    configured = {name: each for name in sorted(cluster) if (each := broker_setting(name))}
    return [
        _described(
            setting,
            cluster[setting.name],
            [DescribedSynonym(setting.name, cluster[setting.name], ConfigSource.DYNAMIC_DEFAULT_BROKER)],
            is_read_only=setting.scope is Scope.STATIC,
        )
        for setting in _chosen(configured, names)
    ]


def describe_group(
    overrides: Texts, names: Collection[str] | None = None, defaults: Mapping[str, Any] = MappingProxyType({})
) -> list[DescribedSetting]:
    """Describe a group's settings, all or the named ones; `defaults` come from broker settings."""
    return [
        _described_override(setting, overrides, ConfigSource.GROUP, defaults.get(setting.name, setting.default))
        for setting in _chosen(GROUP_SETTINGS, names)
    ]


def describe_client_metrics(overrides: Texts, names: Collection[str] | None = None) -> list[DescribedSetting]:
    """Describe a client-metrics resource, all settings or the named ones."""
    return [
        _described_override(setting, overrides, ConfigSource.CLIENT_METRICS, setting.default)
        for setting in _chosen(CLIENT_METRICS_SETTINGS, names)
    ]


def _described_override(setting: Setting, overrides: Texts, source: ConfigSource, default: Any) -> DescribedSetting:
    """A setting with one source besides its default."""
    configured = overrides.get(setting.name)
    synonyms = [] if configured is None else [DescribedSynonym(setting.name, configured, source)]
    value = setting.format(default) if configured is None else configured
    return _described(setting, value, synonyms, is_read_only=False)


def _chosen(known: Mapping[str, Setting], names: Collection[str] | None) -> Iterable[Setting]:
    if not names:  # as in Kafka, an empty list means all
        return [each for each in known.values() if not each.is_internal]
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _synonyms(names: list[str], broker: BrokerTexts) -> list[DescribedSynonym]:
    """Return the values that the sources set under any of the names, in order of precedence."""
    sources = (
        (broker.per_broker, ConfigSource.DYNAMIC_BROKER),
        (broker.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (broker.static, ConfigSource.STATIC_BROKER),
    )
    configured = [
        DescribedSynonym(name, texts[name], source) for texts, source in sources for name in names if name in texts
    ]
    defaults = [(name, setting.format(setting.default)) for name in names if (setting := broker_setting(name))]
    return configured + [
        DescribedSynonym(name, text, ConfigSource.DEFAULT) for name, text in defaults if text is not None
    ]


def _described(
    setting: Setting, value: str | None, synonyms: Iterable[DescribedSynonym], *, is_read_only: bool
) -> DescribedSetting:
    shown = tuple(each._replace(value=None) if setting.is_sensitive else each for each in synonyms)
    return DescribedSetting(
        name=setting.name,
        value=None if setting.is_sensitive else value,
        source=shown[0].source if shown else ConfigSource.DEFAULT,
        is_read_only=is_read_only,
        is_sensitive=setting.is_sensitive,
        kind=setting.kind,
        documentation=setting.doc,
        synonyms=shown,
    )


def describe_loggers(levels: Mapping[str, str], names: Collection[str] | None = None) -> list[DescribedSetting]:
    """The levels of loggers, of all or of those with the given names."""
    return [
        DescribedSetting(name, level, ConfigSource.DYNAMIC_BROKER_LOGGER, False, False, Kind.STRING, "", ())
        for name, level in levels.items()
        if not names or name in names
    ]
