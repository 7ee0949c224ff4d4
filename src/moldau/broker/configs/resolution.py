"""Which value of a setting holds, who set it, and what DescribeConfigs tells about it."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.declarations import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, broker_setting
from moldau.broker.configs.topic_defaults import SYNONYMS, TOPIC_FIELDS
from moldau.model.errors import InvalidConfig
from moldau.model.settings import Kind, Scope, Setting, declared
from moldau.storage.settings import LogSettings

Texts = Mapping[str, str]
Report = Callable[[InvalidConfig], None]

NOTHING_SAID: Final[Texts] = MappingProxyType({})


class ConfigSource(IntEnum):
    """Who set a value, by DescribeConfigs' number."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class BrokerTexts(NamedTuple):
    """All that was said about one broker, from the strongest voice to the weakest."""

    per_broker: Texts = NOTHING_SAID  # AlterConfigs on this broker
    cluster: Texts = NOTHING_SAID  # AlterConfigs on all brokers, the resource named ''
    static: Texts = NOTHING_SAID  # files and flags at start

    def merged(self) -> dict[str, str]:
        return {**self.static, **self.cluster, **self.per_broker}


class DescribedSynonym(NamedTuple):
    """One place that could have set the value, under the name it has there."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One entry of a DescribeConfigs answer; the synonyms begin with the one that holds."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    kind: Kind
    documentation: str
    synonyms: tuple[DescribedSynonym, ...]


# Which value holds ----------------------------------------------------------------------------------------------------


def effective_log_settings(overrides: Texts, defaults: LogSettings, report: Report | None = None) -> LogSettings:
    """The settings of a topic's logs: its own where it has them, the broker's defaults elsewhere.

    Values were checked before they were stored. One that is no longer accepted is reported and passed over: it must
    not keep a broker from serving the topic.
    """
    if not overrides:
        return defaults
    fields: dict[str, Any] = {}
    for field, each in declared(LogSettings).items():
        if each.name in overrides:
            try:
                fields[field] = each.parse(overrides[each.name])
            except InvalidConfig as refusal:
                _tell(report, refusal)
    return dataclasses.replace(defaults, **fields)


def effective_broker_settings(texts: BrokerTexts, report: Report | None = None) -> BrokerSettings:
    """The settings of a running broker. What was set at start must be right; later values that are not are left out."""
    static = BrokerSettings.parse(texts.static)
    later = acceptable({**texts.cluster, **texts.per_broker}, report)
    if not later:
        return static
    try:
        return BrokerSettings.parse({**texts.static, **later})
    except InvalidConfig as refusal:
        _tell(report, refusal)
        rest = {name: text for name, text in later.items() if not _is_at_peace(texts.static, later, without=name)}
        return BrokerSettings.parse({**texts.static, **rest}) if _is_at_peace(texts.static, rest) else static


def _is_at_peace(static: Texts, later: Texts, without: str = "") -> bool:
    """Whether the later values fit together; where they do without one of them, that one is at odds with another."""
    try:
        BrokerSettings.parse({**static, **{name: text for name, text in later.items() if name != without}})
    except InvalidConfig:
        return False
    return True


def acceptable(texts: Texts, report: Report | None = None) -> dict[str, str]:
    """Those of the texts for a running broker that may change while it runs and are within their bounds."""
    accepted = {}
    for name, text in texts.items():
        setting = broker_setting(name)
        if setting is None or setting.scope is Scope.STATIC:
            continue
        try:
            setting.parse(text)
            accepted[name] = text
        except InvalidConfig as refusal:
            _tell(report, refusal)
    return accepted


def _tell(report: Report | None, refusal: InvalidConfig) -> None:
    if report:
        report(refusal)


# What is told about it ------------------------------------------------------------------------------------------------


def describe_topic(
    overrides: Texts, broker: BrokerTexts, names: Collection[str] | None = None
) -> list[DescribedSetting]:
    """A topic's settings, all or those named; names that no topic has are left out."""
    defaults = effective_broker_settings(broker).log_defaults
    effective = effective_log_settings(overrides, defaults)
    described = []
    for setting in _chosen(TOPIC_SETTINGS, names):
        synonyms = _said_by_broker([synonym.name for synonym in SYNONYMS.get(setting.name, ())], broker)
        if setting.name in overrides:
            own = DescribedSynonym(setting.name, overrides[setting.name], ConfigSource.DYNAMIC_TOPIC)
            synonyms = [own, *synonyms]
        value = setting.format(getattr(effective, TOPIC_FIELDS[setting.name]))
        described.append(_described(setting, value, synonyms, is_read_only=False))
    return described


def describe_broker(broker: BrokerTexts, names: Collection[str] | None = None) -> list[DescribedSetting]:
    """A broker's settings, all or those named; with them what was set for single listeners and plug-ins."""
    merged = broker.merged()
    known = dict(BROKER_SETTINGS)
    known.update({name: each for name in merged if name not in known and (each := broker_setting(name))})
    described = []
    for setting in _chosen(known, names):
        synonyms = _said_by_broker([setting.name], broker)
        value = merged.get(setting.name, setting.format(setting.default))
        described.append(_described(setting, value, synonyms, is_read_only=setting.scope is Scope.STATIC))
    return described


def describe_cluster(cluster: Texts, names: Collection[str] | None = None) -> list[DescribedSetting]:
    """What was set for all brokers at once: the resource named ''."""
    said = {name: each for name in sorted(cluster) if (each := broker_setting(name))}
    return [
        _described(
            setting,
            cluster[setting.name],
            [DescribedSynonym(setting.name, cluster[setting.name], ConfigSource.DYNAMIC_DEFAULT_BROKER)],
            is_read_only=setting.scope is Scope.STATIC,
        )
        for setting in _chosen(said, names)
    ]


def describe_group(
    overrides: Texts, names: Collection[str] | None = None, defaults: Mapping[str, Any] = MappingProxyType({})
) -> list[DescribedSetting]:
    """A group's settings, all or those named; `defaults` are what the broker's own settings say of some."""
    described = []
    for setting in _chosen(GROUP_SETTINGS, names):
        said = overrides.get(setting.name)
        synonyms = [] if said is None else [DescribedSynonym(setting.name, said, ConfigSource.GROUP)]
        value = setting.format(defaults.get(setting.name, setting.default)) if said is None else said
        described.append(_described(setting, value, synonyms, is_read_only=False))
    return described


def _chosen(known: Mapping[str, Setting], names: Collection[str] | None) -> Iterable[Setting]:
    if not names:  # as in Kafka, an empty list asks for all
        return [each for each in known.values() if not each.is_internal]
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _said_by_broker(names: list[str], broker: BrokerTexts) -> list[DescribedSynonym]:
    """What each voice says under any of the names, the one that holds first."""
    voices = (
        (broker.per_broker, ConfigSource.DYNAMIC_BROKER),
        (broker.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (broker.static, ConfigSource.STATIC_BROKER),
    )
    said = [DescribedSynonym(name, texts[name], source) for texts, source in voices for name in names if name in texts]
    defaults = [(name, setting.format(setting.default)) for name in names if (setting := broker_setting(name))]
    return said + [DescribedSynonym(name, text, ConfigSource.DEFAULT) for name, text in defaults if text is not None]


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
