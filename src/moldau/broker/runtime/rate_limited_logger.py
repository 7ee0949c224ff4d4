"""Log lines that peers can cause, at a bounded rate: a flood of bad requests must not fill the disk."""

import logging
from typing import Final

from moldau.model.ports import Clock

LINES_AT_ONCE: Final = 10
LINE_EVERY_MS: Final = 10_000.0
KINDS_MAX: Final = 64
TEXT_CHARACTERS_MAX: Final = 400


class _Kind:
    """The token bucket of one kind of line, and the number of suppressed lines."""

    __slots__ = ("_refilled_ms", "_tokens", "suppressed")

    def __init__(self, now_ms: float) -> None:
        self._tokens = float(LINES_AT_ONCE)
        self._refilled_ms = now_ms
        self.suppressed = 0

    def allows(self, now_ms: float) -> bool:
        self._tokens = min(LINES_AT_ONCE, self._tokens + (now_ms - self._refilled_ms) / LINE_EVERY_MS)
        self._refilled_ms = now_ms
        self.suppressed += self._tokens < 1
        return self._tokens >= 1

    def take(self) -> None:
        self._tokens -= 1


class RateLimitedLogger:
    """Each kind of line has a limit of its own, so that a flood of one kind does not hide the others."""

    def __init__(self, clock: Clock, logger: logging.Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._kinds: dict[str, _Kind] = {}

    def write(self, kind: str, text: str, level: int = logging.WARNING, error: BaseException | None = None) -> None:
        """Write a line unless its kind is over its limit. `kind` must not contain input from peers; `text` may."""
        if self.allows(kind):
            bucket = self._kinds[kind]
            more = f" ({bucket.suppressed} similar lines suppressed)" if bucket.suppressed else ""
            bucket.suppressed = 0
            self._logger.log(level, "%s%s", one_line(text), more, exc_info=error)
            bucket.take()

    def allows(self, kind: str) -> bool:
        """Whether a line may be written now; counts it as suppressed if not. Call it before building a costly text."""
        now_ms = self._clock.monotonic_ms()
        bucket = self._kinds.get(kind)
        if bucket is None:
            if len(self._kinds) >= KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            bucket = self._kinds[kind] = _Kind(now_ms)
        return bucket.allows(now_ms)


def one_line(text: str) -> str:
    """Return the text fit for a log: short, without line breaks and terminal escapes."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[:TEXT_CHARACTERS_MAX] + "…"
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
