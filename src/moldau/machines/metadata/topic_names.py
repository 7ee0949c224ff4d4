"""Validation of topic names, and collisions between them."""

import re
from collections.abc import Iterable
from typing import Final

from moldau.model.errors import InvalidTopic

NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise `InvalidTopic` with Kafka's message."""
    error = _name_error(name)
    if error:
        raise InvalidTopic(f"Topic name is invalid: {error}")


def is_topic_name(name: str) -> bool:
    return _name_error(name) is None


def _name_error(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def can_collide(name: str) -> bool:
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """Return a key that is equal for names that metrics cannot distinguish, because '.' becomes '_' there."""
    return name.replace(".", "_")


def collision_keys(names: Iterable[str]) -> dict[str, str]:
    """Return the names that can collide with others, by key."""
    return {collision_key(name): name for name in names if can_collide(name)}
