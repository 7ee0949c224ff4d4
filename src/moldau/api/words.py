"""What goes in and out: values, messages, and where a message stands."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

Value = bytes | str | dict[str, Any] | list[Any] | int | float | bool | None
Headers = Mapping[str, bytes | str | None]


class Failed(Exception):
    """Something the cluster or the network refused, in words."""


class Place(NamedTuple):
    """Where a message stands in the log."""

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
        """The value as what its JSON says."""
        return None if self.value is None else json.loads(self.value)


def encoded(value: Value) -> bytes | None:
    """Bytes as they are, text as UTF-8, everything else as JSON; None stays nothing (a tombstone)."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


def encoded_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in (headers or {}).items()]
