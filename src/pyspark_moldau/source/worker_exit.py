"""Silences the exit of a stream reader's worker process, whose connection Spark closes at any time.

PySpark's runner then fails to report over the closed connection and prints a traceback, which looks like
an error after every stopped query.
"""

import sys
from types import TracebackType
from typing import Final

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def ignore_broken_pipe_at_exit() -> None:
    """Ignore broken pipes at exit if this process is a stream reader's worker."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _RUNNER:
        sys.excepthook = ignore_broken_pipe


def ignore_broken_pipe(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
