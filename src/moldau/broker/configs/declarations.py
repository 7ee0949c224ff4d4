"""All accepted setting names, by scope, and suggestions for unknown ones."""

import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.schedule_configs import SCHEDULE_SETTINGS
from moldau.broker.configs.topic_defaults import TOPIC_DEFAULTS
from moldau.model import kafka_settings
from moldau.model.settings import Kind, Setting, declared, shorten
from moldau.storage.settings import LogSettings

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = {each.name: each for each in declared(LogSettings).values()}
BROKER_SETTINGS: Final[Mapping[str, Setting]] = {
    **{each.name: each for each in declared(BrokerSettings).values()},
    **TOPIC_DEFAULTS,
    **kafka_settings.BROKER_SETTINGS,
}
GROUP_SETTINGS: Final[Mapping[str, Setting]] = {**kafka_settings.GROUP_SETTINGS, **SCHEDULE_SETTINGS}

LISTENER_PREFIX: Final = "listener.name."
PER_LISTENER: Final = ("ssl.", "sasl.")  # what a listener may override
NAME_LENGTH_MAX: Final = 250


def broker_setting(name: str) -> Setting | None:
    """Return the declaration of a broker setting, of a per-listener one, or of one for a plug-in."""
    if name in BROKER_SETTINGS:
        return BROKER_SETTINGS[name]
    if len(name) > NAME_LENGTH_MAX:
        return None
    if name.startswith(LISTENER_PREFIX):
        return _listener_setting(name)
    if name.startswith(kafka_settings.PLUGIN_PREFIXES):
        return Setting(name, None, Kind.PASSWORD, "A setting of a Kafka plug-in.", has_effect=False)
    return None


def _listener_setting(name: str) -> Setting | None:
    """`listener.name.LISTENER.NAME`, or for one SASL mechanism `listener.name.LISTENER.MECHANISM.NAME`."""
    _, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    _, _, after_mechanism = rest.partition(".")
    for candidate in (rest, after_mechanism):
        if candidate in BROKER_SETTINGS:
            general = BROKER_SETTINGS[candidate]
            has_effect = general.has_effect and candidate.startswith(PER_LISTENER)
            return dataclasses.replace(general, name=name, default=None, has_effect=has_effect)
    return None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`."""
    matches = get_close_matches(name[:NAME_LENGTH_MAX].lower(), known, n=1, cutoff=0.7)
    return matches[0] if matches else None


def unknown(what: str, name: str, known: Mapping[str, Setting]) -> str:
    """Return the error message for an unknown name."""
    match = nearest(name, known)
    hint = f". Did you mean {match}?" if match else ""
    return f"Unknown {what} config name: {shorten(name)}{hint}"


def without_effect(known: Mapping[str, Setting], names: Iterable[str]) -> list[str]:
    """Return the names that are accepted but have no effect, in order; the caller logs one warning."""
    return sorted(name for name in names if name in known and not known[name].has_effect)
