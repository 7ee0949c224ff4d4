"""Which names a topic may have, and which two names are too much alike."""

import re
from collections.abc import Iterable
from typing import Final

from moldau.model.errors import InvalidTopic

NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise `InvalidTopic` with the reason, in Kafka's words."""
    complaint = _complaint(name)
    if complaint:
        raise InvalidTopic(f"Topic name is invalid: {complaint}")


def is_topic_name(name: str) -> bool:
    return _complaint(name) is None


def _complaint(name: str) -> str | None:
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
    """Equal for two names that metrics cannot tell apart, because '.' becomes '_' there."""
    return name.replace(".", "_")


def collision_keys(names: Iterable[str]) -> dict[str, str]:
    """The names that can collide with others, by key."""
    return {collision_key(name): name for name in names if can_collide(name)}
