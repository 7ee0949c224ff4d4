"""What may be the name of a topic: a cluster that is asked for another one says little of what is wrong."""

import re
from typing import Final

from pyspark_moldau.options.offset_limits import OptionError

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def check_topic_name(option: str, name: str) -> str:
    """The name, or an error that names the option."""
    if not is_topic_name(name):
        raise OptionError(
            f"Option '{option}': {name!r} cannot be the name of a topic, which has up to 249 letters from a to z, "
            "digits, dots, dashes and underscores."
        )
    return name
