"""Log lines: for people by default, as JSON for machines."""

import json
import logging
import sys
from typing import Final

TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
TIME: Final = "%Y-%m-%d %H:%M:%S"
PACKAGE: Final = "moldau."


class _TextLines(logging.Formatter):
    """Time, level, logger and message."""

    def __init__(self) -> None:
        super().__init__(TEXT, TIME)

    def format(self, record: logging.LogRecord) -> str:
        record.name = record.name.removeprefix(PACKAGE)
        return super().format(record)


class _JsonLines(logging.Formatter):
    """One object per line, with a `traceback` field if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix(PACKAGE),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logs(form: str, level: str) -> None:
    """Log to standard error; standard output is for command results."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
