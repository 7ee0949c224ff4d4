"""Output into pipes: nothing is cut short, and a reader that leaves is noticed."""

import _thread
import asyncio
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


def write_out(data: bytes) -> None:
    """All of it, at once: an unbuffered stream takes as much as it likes of a large write."""
    out = sys.stdout.buffer
    left = memoryview(data)
    while left:
        left = left[out.write(left) or 0 :]
    out.flush()


@asynccontextmanager
async def reader_watched() -> AsyncIterator[None]:
    """Raise `BrokenPipeError` as soon as whoever reads our output leaves, even while there is nothing to write."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    descriptor = _output_pipe()
    has_left = False

    def leave() -> None:
        nonlocal has_left
        has_left = True
        loop.remove_reader(descriptor)
        task.cancel()

    if descriptor >= 0:
        loop.add_reader(descriptor, leave)  # nobody can read this end: only its closing wakes us
    try:
        yield
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
        raise BrokenPipeError from None
    finally:
        if descriptor >= 0:
            loop.remove_reader(descriptor)


@contextmanager
def reader_watched_aside() -> Iterator[None]:
    """The same for work that holds up the main thread: another one waits for the reader to leave."""
    descriptor = _output_pipe()
    if descriptor < 0:
        yield
        return
    ended, end = os.pipe()
    is_told = False

    def heard(number: int, _: object) -> None:  # noqa: ARG001
        nonlocal is_told
        if not is_told and _has_left(descriptor):
            is_told = True  # once: whoever closes what it has open is not interrupted again
            raise BrokenPipeError

    def look() -> None:
        if _has_left(descriptor, ended):
            # Not as Ctrl-C would: whoever runs in the background does not hear that.
            _thread.interrupt_main(signal.SIGPIPE)

    before = signal.signal(signal.SIGPIPE, heard)
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        os.close(end)
        looking.join()
        os.close(ended)
        signal.signal(signal.SIGPIPE, before)


def _has_left(descriptor: int, ended: int = -1) -> bool:
    """Whether nobody reads our output any more: now, or by the time at which `ended` does, if that is given."""
    watched = select.poll()
    watched.register(descriptor, 0)  # of an end that nobody reads, only errors are told
    if ended >= 0:
        watched.register(ended, select.POLLIN)
    return descriptor in dict(watched.poll(None if ended >= 0 else 0))


def _output_pipe() -> int:
    """The descriptor of standard output if it is a pipe, else -1."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else -1
    except (OSError, ValueError):
        return -1
