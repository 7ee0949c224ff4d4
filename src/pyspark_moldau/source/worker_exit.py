"""How the process ends in which a stream's reader lives: Spark closes its connection, in the middle of a word perhaps.

PySpark's runner then tries to tell the reason, which nobody hears, and dies of that with a traceback: in the eyes of
whoever has stopped a query, an error.
"""

import sys
from types import TracebackType
from typing import Final

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def ignore_broken_pipe_at_exit() -> None:
    """From now on, if this is such a process, it is no error that nobody listens."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _RUNNER:
        sys.excepthook = ignore_broken_pipe


def ignore_broken_pipe(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
