"""A schedule as the configs of a group define it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

CRON: Final = "moldau.schedule.cron"
TIMEZONE: Final = "moldau.schedule.timezone"
TOPIC: Final = "moldau.schedule.topic"
KEY: Final = "moldau.schedule.key"
VALUE: Final = "moldau.schedule.value"
CATCH_UP: Final = "moldau.schedule.catch.up"
PAUSED: Final = "moldau.schedule.paused"
START_MS: Final = "moldau.schedule.start.ms"
PREFIX: Final = "moldau.schedule."

TIMEZONE_DEFAULT: Final = "UTC"


class CatchUp(StrEnum):
    """The treatment of ticks that were missed, such as during an outage."""

    ONCE = "once"  # the last one of them is published
    ALL = "all"


class Schedule(NamedTuple):
    """When to publish what."""

    name: str
    cron: str
    topic: str
    timezone: str = TIMEZONE_DEFAULT
    key: str | None = None
    value: str | None = None
    catch_up: CatchUp = CatchUp.ONCE
    is_paused: bool = False
    start_ms: int | None = None  # ticks after it; None: from when the coordinator sees the schedule

    @property
    def timing(self) -> str:
        """Identifies everything that decides about ticks: after a change of it, they are counted from then on."""
        return "\t".join([self.cron, self.timezone, self.topic, str(self.is_paused), str(self.start_ms)])


def schedule_of(name: str, configs: Mapping[str, str]) -> Schedule | None:
    """The schedule of a group's valid configs, if they define one."""
    cron, topic = configs.get(CRON), configs.get(TOPIC)
    if not cron or not topic:
        return None
    start = configs.get(START_MS)
    return Schedule(
        name,
        cron,
        topic,
        timezone=configs.get(TIMEZONE, TIMEZONE_DEFAULT),
        key=configs.get(KEY),
        value=configs.get(VALUE),
        catch_up=CatchUp(configs.get(CATCH_UP, CatchUp.ONCE)),
        is_paused=configs.get(PAUSED, "false").lower() == "true",
        start_ms=None if start is None or int(start) < 0 else int(start),
    )
