"""Group configs that define a schedule: records that the cluster publishes at the times of a cron expression."""

from collections.abc import Mapping, Set
from typing import Final

from moldau.broker.internal_topics import is_internal
from moldau.client.cron import check_cron
from moldau.machines.metadata.topic_names import check_topic_name
from moldau.machines.schedules import CatchUp
from moldau.machines.schedules.definition import (
    CATCH_UP,
    CRON,
    KEY,
    PAUSED,
    PREFIX,
    START_MS,
    TIMEZONE,
    TIMEZONE_DEFAULT,
    TOPIC,
    VALUE,
)
from moldau.model.errors import InvalidConfig, InvalidTopic
from moldau.model.settings import Kind, Setting
from moldau.model.units import KiB

VALUE_BYTES_MAX: Final = 64 * KiB


def _setting(name: str, kind: Kind, default: object, doc: str, one_of: tuple[str, ...] = ()) -> Setting:
    return Setting(name=name, default=default, kind=kind, doc=f"{doc} Not in Kafka.", one_of=one_of)


SCHEDULE_SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: each
    for each in (
        _setting(CRON, Kind.STRING, "", "Times at which the schedule of this name publishes a record."),
        _setting(TIMEZONE, Kind.STRING, TIMEZONE_DEFAULT, "Time zone of the times."),
        _setting(TOPIC, Kind.STRING, "", "Topic of the records."),
        _setting(KEY, Kind.STRING, "", "Key of the records; null if not set."),
        _setting(VALUE, Kind.STRING, "", "Value of the records; null if not set."),
        _setting(
            CATCH_UP,
            Kind.STRING,
            CatchUp.ONCE.value,
            "Whether all ticks that were missed are published, or the last one of them.",
            one_of=tuple(CatchUp),
        ),
        _setting(PAUSED, Kind.BOOLEAN, False, "Whether the schedule publishes nothing."),
        _setting(START_MS, Kind.LONG, -1, "Time in ms after which ticks count; -1: when the schedule is first seen."),
    )
}


def check_schedule_config(texts: Mapping[str, str], changed: Set[str]) -> None:
    """Reject a schedule without times or without a topic."""
    if not any(name.startswith(PREFIX) for name in changed & texts.keys()):
        return
    if not texts.get(CRON) or not texts.get(TOPIC):
        raise InvalidConfig(f"A schedule needs {CRON} and {TOPIC}.")
    check_cron(texts[CRON], texts.get(TIMEZONE, TIMEZONE_DEFAULT))
    _check_topic(texts[TOPIC])
    if len(texts.get(VALUE, "").encode()) > VALUE_BYTES_MAX:
        raise InvalidConfig(f"{VALUE} has more than {VALUE_BYTES_MAX} bytes.")


def _check_topic(topic: str) -> None:
    try:
        check_topic_name(topic)
    except InvalidTopic as error:
        raise InvalidConfig(f"{TOPIC}: {error.message}") from None
    if is_internal(topic):
        raise InvalidConfig(f"{TOPIC}: {topic} is an internal topic.")
