"""Standard streams that can take no more: their reader has left, or their disk is full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


def forget(stream: IO[str]) -> None:
    """Whoever read it has left (`| head`), or its disk is full; what is still buffered must not complain at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def while_there_is_room(stream: IO[str]) -> Iterator[None]:
    """For what is said beside the work: where there is no room for it, the work goes on without."""
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError:
        forget(stream)
