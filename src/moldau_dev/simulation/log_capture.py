"""Capture the log of simulated nodes: shown with a failure; an error in it fails the run."""

import contextvars
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from moldau.testing.disk_faults import Crashed
from moldau_dev.simulation.process import process_in

LINES_MAX: Final = 50


class LogCapture(logging.Handler):
    """Captures the records of all Moldau loggers during `capture`."""

    def __init__(
        self,
        now_s: Callable[[], float],
        fail: Callable[[str, BaseException | None], None],
        is_expected: Callable[[BaseException | None], bool],
    ) -> None:
        super().__init__(logging.INFO)
        self._is_expected = is_expected
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self._now_s, self._fail = now_s, fail
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        process = process_in(contextvars.copy_context())
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Crashed) or (process is not None and not process.is_alive):
            return  # written by a dead process
        line = self.format(record)
        self.lines.append(f"{self._now_s():.6f} {process.name if process else '-'} {line}")
        if record.levelno >= logging.ERROR and not self._is_expected(error):
            self._fail(f"{process.name if process else 'the test'} logged: {record.getMessage()}", error)

    @contextmanager
    def capture(self) -> Iterator[None]:
        loggers = [logging.getLogger(name) for name in ("moldau", "moldau_dev")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.addHandler(self)
            logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
                logger.removeHandler(self)
