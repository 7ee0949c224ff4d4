"""Validates topic names up front, because the brokers' error for invalid ones is not specific."""

import re
from typing import Final

from pyspark_moldau.options.offset_limits import OptionError

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def check_topic_name(option: str, name: str) -> str:
    """Return the name; raises an error that mentions the option."""
    if not is_topic_name(name):
        raise OptionError(
            f"Option '{option}': {name!r} is not a valid topic name: use up to 249 ASCII letters, "
            "digits, dots, dashes and underscores."
        )
    return name
