"""Times of cron expressions, by cronsim, which follows Debian's cron also when clocks change.

Five fields have a resolution of minutes, six one of seconds. A job at a fixed time that the change of clocks skips runs
right after it, and a time that occurs twice counts once; `*/5` and the like count every elapsed interval.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from moldau.model.errors import InvalidConfig

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

FIRST_YEAR_MS: Final = 946_684_800_000  # 2000: any time to start a check from
CACHED_ZONES: Final = 256


def check_cron(cron: str, timezone: str) -> None:
    """Raise `InvalidConfig` for an expression or a time zone that has no times."""
    _zone(timezone)
    if next_tick(cron, timezone, FIRST_YEAR_MS) is None:
        raise InvalidConfig(f"Cron expression {cron!r} has no time: the date does not exist.")


def next_tick(cron: str, timezone: str, after_ms: int) -> int | None:
    """The first time after `after_ms`, in ms since the epoch."""
    return _tick(cron, timezone, after_ms, is_reverse=False)


def last_tick(cron: str, timezone: str, until_ms: int) -> int | None:
    """The last time up to `until_ms`."""
    return _tick(cron, timezone, until_ms + 1000, is_reverse=True)


def _tick(cron: str, timezone: str, from_ms: int, *, is_reverse: bool) -> int | None:
    from cronsim import CronSim, CronSimError

    # Whole seconds: a time within the second of `from_ms` is not after it.
    start = datetime.fromtimestamp(from_ms // 1000, UTC).astimezone(_zone(timezone))
    try:
        found = next(CronSim(cron, start, reverse=is_reverse), None)
    except CronSimError as error:
        raise InvalidConfig(
            f"Invalid cron expression {cron!r}: {str(error).lower()}. Write minute, hour, day, month and weekday, "
            "such as */5 * * * *."
        ) from None
    return None if found is None else round(found.timestamp() * 1000)


@lru_cache(CACHED_ZONES)
def _zone(name: str) -> "ZoneInfo":
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidConfig(f"Unknown time zone {name!r}: use a name such as UTC or Europe/Prague.") from None
