"""The Python loggers of this process as Kafka's BROKER_LOGGER configs: their levels, under the names of log4j."""

import logging
from typing import Final

from moldau.model.errors import InvalidConfig, InvalidRequest

ROOT: Final = "root"
TRACE: Final = 5  # below logging.DEBUG

LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}


def logger_levels() -> dict[str, str]:
    """The effective level of every logger, by name."""
    known = logging.root.manager.loggerDict
    names = sorted(name for name, each in known.items() if isinstance(each, logging.Logger))
    return {ROOT: _level_name(logging.root), **{name: _level_name(logging.getLogger(name)) for name in names}}


def _level_name(logger: logging.Logger) -> str:
    """The log4j level that writes the same messages, or the next one that writes more."""
    level = logger.getEffectiveLevel()
    return next((name for name, number in LEVELS.items() if number <= level), "TRACE")


def check_level(name: str, level: str | None) -> None:
    """Check a change before any is applied; without a level, the logger would inherit that of its parent."""
    if name != ROOT and not isinstance(logging.root.manager.loggerDict.get(name), logging.Logger):
        raise InvalidConfig(f"Logger {name} does not exist!")
    if level is None:
        if name == ROOT:
            raise InvalidRequest(f"Removing the log level of the {ROOT} logger is not allowed")
    elif level not in LEVELS:
        raise InvalidConfig(
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}"
        )


def set_level(name: str, level: str | None) -> None:
    """Apply a change that was checked."""
    logger = logging.root if name == ROOT else logging.getLogger(name)
    logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
