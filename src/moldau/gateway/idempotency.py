"""Responses of requests with an `Idempotency-Key`, so that a repeated request is produced once.

The first request with a key produces; one that arrives meanwhile waits for its response, and one that arrives later
gets the same response. A request that stored nothing for certain is forgotten, so that it can be repeated. If the
outcome is unknown, a repetition is rejected: to send it again might store its records twice.

The window is bounded by time, number and bytes, the oldest entry goes first, and it is lost when the process ends.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from moldau.console.errors import ConsoleError
from moldau.model.units import MINUTE_MS, MiB

WINDOW_MS: Final = 10 * MINUTE_MS
ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 32 * MiB
KEY_CHARACTERS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Outcome:
    """The response of a produce request."""

    status: int
    body: bytes
    is_stored: bool  # some of its records
    is_unknown: bool = False  # whether some of its records are stored


UNKNOWN: Final = (
    "The outcome of the first request with this Idempotency-Key is unknown: its records may be stored. Read the topic "
    "to find out; send them with another key if they are missing."
)


@dataclass(slots=True)
class Entry:
    """A request in the window; several requests may wait for its outcome."""

    fingerprint: bytes
    begun_ms: float
    outcome: asyncio.Future[Outcome]


@dataclass(slots=True)
class IdempotencyWindow:
    """Entries by user, topic and key, the oldest first."""

    window_ms: float = WINDOW_MS
    entries_max: int = ENTRIES_MAX
    bytes_max: int = BYTES_MAX
    _entries: dict[tuple[str, ...], Entry] = field(default_factory=dict)
    _bytes: int = 0

    async def repeated(self, key: tuple[str, ...], fingerprint: bytes, now_ms: float) -> Outcome | None:
        """Return the outcome of the first request with this key; None if this is the first."""
        entry = self._entries.get(key)
        if entry is None or (entry.outcome.done() and now_ms - entry.begun_ms >= self.window_ms):
            return None
        if entry.fingerprint != fingerprint:
            message = "This Idempotency-Key belongs to a request with other content; use a new key for each request."
            raise ConsoleError(422, "idempotency_key_reused", message)
        outcome = await asyncio.shield(entry.outcome)
        if outcome.is_unknown:
            raise ConsoleError(409, "outcome_unknown", UNKNOWN)
        return outcome

    def begin(self, key: tuple[str, ...], fingerprint: bytes, now_ms: float) -> Entry:
        self._forget(key)
        entry = Entry(fingerprint, now_ms, asyncio.get_running_loop().create_future())
        self._entries[key] = entry
        return entry

    def end(self, key: tuple[str, ...], outcome: Outcome, now_ms: float) -> None:
        """Give the outcome to the waiting requests, and keep it if a repetition could store records twice."""
        self._entries[key].outcome.set_result(outcome)
        self._bytes += len(outcome.body)
        if not outcome.is_stored and not outcome.is_unknown:
            self._forget(key)
        self._evict(now_ms)

    def abandon(self, key: tuple[str, ...]) -> None:
        """Fail the waiting requests: the first one ended without an outcome."""
        outcome = self._entries.pop(key).outcome
        outcome.set_exception(
            ConsoleError(503, "abandoned", "The first request with this Idempotency-Key failed; retry.")
        )
        outcome.exception()  # retrieved, if no request waits for it

    def __len__(self) -> int:
        return len(self._entries)

    def _evict(self, now_ms: float) -> None:
        for key, entry in list(self._entries.items()):
            is_full = len(self._entries) > self.entries_max or self._bytes > self.bytes_max
            if not is_full and now_ms - entry.begun_ms < self.window_ms:
                return
            if entry.outcome.done():
                self._forget(key)

    def _forget(self, key: tuple[str, ...]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry.outcome.result().body)
