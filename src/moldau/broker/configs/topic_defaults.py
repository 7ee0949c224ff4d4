"""Broker settings that are the defaults of topic settings."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from moldau.model.errors import InvalidConfig
from moldau.model.settings import Kind, Scope, Setting, declared
from moldau.model.units import HOUR_MS, MINUTE_MS
from moldau.storage.settings import LogSettings


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that gives the default of a topic setting, after multiplication by its unit."""

    name: str
    unit: int = 1

    @property
    def scope(self) -> Scope:
        """As in Kafka, these can be changed dynamically, except those in hours and minutes."""
        return Scope.CLUSTER if self.unit == 1 and self.name != "log.flush.scheduler.interval.ms" else Scope.STATIC


# Where a topic setting has several synonyms, the first that is set counts.
SYNONYMS: Final[Mapping[str, tuple[Synonym, ...]]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "moldau.record.validation": (Synonym("moldau.record.validation"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}


def _not_zero(value: int) -> str | None:
    return None if value else "it must be -1 (no limit) or at least 1"


def _derived(topic_setting: Setting, synonym: Synonym, synonyms: tuple[Synonym, ...]) -> Setting:
    """Declare the broker setting of a topic setting; only the last of several has a default value."""
    is_counted = synonym.unit > 1
    default = topic_setting.default if synonym is synonyms[-1] else None
    return dataclasses.replace(
        topic_setting,
        name=synonym.name,
        default=default // synonym.unit if default is not None and is_counted else default,
        kind=Kind.INT if is_counted else topic_setting.kind,
        check=_not_zero if topic_setting.name == "retention.ms" else topic_setting.check,
        scope=synonym.scope,
        doc=_doc(topic_setting.name, synonym, synonyms),
    )


def _doc(topic_name: str, synonym: Synonym, synonyms: tuple[Synonym, ...]) -> str:
    unit = {MINUTE_MS: ", in minutes", HOUR_MS: ", in hours"}.get(synonym.unit, "")
    before = [each.name for each in synonyms[: synonyms.index(synonym)]]
    unless = f", where {' and '.join(before)} {'are' if len(before) > 1 else 'is'} not set" if before else ""
    return f"The {topic_name} of topics that do not set it{unit}{unless}."


_by_topic_name: Final = {each.name: each for each in declared(LogSettings).values()}
TOPIC_FIELDS: Final[Mapping[str, str]] = {each.name: field for field, each in declared(LogSettings).items()}

TOPIC_DEFAULTS: Final[Mapping[str, Setting]] = {
    synonym.name: _derived(_by_topic_name[topic_name], synonym, synonyms)
    for topic_name, synonyms in SYNONYMS.items()
    for synonym in synonyms
}


def log_defaults(texts: Mapping[str, str]) -> LogSettings:
    """Return the default topic settings, from texts by broker setting name."""
    fields: dict[str, Any] = {}
    for topic_name, synonyms in SYNONYMS.items():
        for synonym in synonyms:
            if synonym.name in texts:
                value = TOPIC_DEFAULTS[synonym.name].parse(texts[synonym.name])
                fields.setdefault(TOPIC_FIELDS[topic_name], _in_topic_units(value, synonym))
    defaults = LogSettings(**fields)
    try:
        defaults.check()
    except InvalidConfig as error:
        raise InvalidConfig(f"The broker's defaults for topics contradict each other: {error}") from None
    return defaults


def _in_topic_units(value: Any, synonym: Synonym) -> Any:
    if synonym.unit == 1:
        return value
    return -1 if value < 0 else value * synonym.unit
