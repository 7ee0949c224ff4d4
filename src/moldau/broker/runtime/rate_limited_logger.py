"""Log lines that peers can cause, at a bounded rate: a flood of bad requests must not fill the disk."""

import logging
from typing import Final

from moldau.model.ports import Clock

LINES_AT_ONCE: Final = 10
LINE_EVERY_MS: Final = 10_000.0
KINDS_MAX: Final = 64
TEXT_CHARACTERS_MAX: Final = 400


class _Kind:
    """How many lines of one kind may be written now, and how many were not."""

    __slots__ = ("_looked_ms", "_ready", "unsaid")

    def __init__(self, now_ms: float) -> None:
        self._ready = float(LINES_AT_ONCE)
        self._looked_ms = now_ms
        self.unsaid = 0

    def admits(self, now_ms: float) -> bool:
        self._ready = min(LINES_AT_ONCE, self._ready + (now_ms - self._looked_ms) / LINE_EVERY_MS)
        self._looked_ms = now_ms
        self.unsaid += self._ready < 1
        return self._ready >= 1

    def take(self) -> None:
        self._ready -= 1


class RateLimitedLogger:
    """Each kind of complaint has its own share of lines, so that one flood does not hide the rest."""

    def __init__(self, clock: Clock, logger: logging.Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._kinds: dict[str, _Kind] = {}

    def write(self, kind: str, text: str, level: int = logging.WARNING, error: BaseException | None = None) -> None:
        """`kind` is of our making, `text` may hold what a peer sent; an `error` is shown with its traceback."""
        if self.admits(kind):
            share = self._kinds[kind]
            more = f" ({share.unsaid} more like this were not written)" if share.unsaid else ""
            share.unsaid = 0
            self._logger.log(level, "%s%s", one_line(text), more, exc_info=error)
            share.take()

    def admits(self, kind: str) -> bool:
        """Whether a line would be written now; counted, if not. To be asked before a text is made at some cost."""
        now_ms = self._clock.monotonic_ms()
        share = self._kinds.get(kind)
        if share is None:
            if len(self._kinds) >= KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            share = self._kinds[kind] = _Kind(now_ms)
        return share.admits(now_ms)


def one_line(text: str) -> str:
    """Fit for a log: short, and without what would start a line of its own or talk to a terminal."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[:TEXT_CHARACTERS_MAX] + "…"
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
