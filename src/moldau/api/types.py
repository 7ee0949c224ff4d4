"""Values, messages, and positions of messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

Value = bytes | str | dict[str, Any] | list[Any] | int | float | bool | None
Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]


class Failed(Exception):
    """An error of the cluster or the network."""


class Place(NamedTuple):
    """The position of a message in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Message:
    """One record as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition, self.offset)

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    @property
    def text(self) -> str | None:
        """The value as text."""
        return None if self.value is None else self.value.decode()

    def json(self) -> Any:
        """Parse the value as JSON."""
        return None if self.value is None else json.loads(self.value)


def checked_name(text: str, what: str) -> str:
    """Check a name for librdkafka, which aborts the process on invalid UTF-8 and truncates at NUL."""
    try:
        is_name = b"\0" not in text.encode()
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise Failed(f"{what} {text!r} is not a valid name: it is not UTF-8 or contains NUL.")
    return text


def checked_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Check all text settings. Values are not shown: they may be secrets."""
    for setting, value in config.items():
        if isinstance(value, str):
            try:
                checked_name(value, setting)
            except Failed:
                raise Failed(f"{setting} is not UTF-8 or contains NUL.") from None
    return config


def encoded(value: Value) -> bytes | None:
    """Encode bytes unchanged, text as UTF-8, everything else as JSON; None is a tombstone."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


def encoded_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """Encode a mapping, or pairs of which several may have the same name."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [
        (checked_name(name, "header"), value.encode() if isinstance(value, str) else value) for name, value in pairs
    ]
