"""Standard streams: complete writes into pipes, and readers or disks that stop accepting output.

`moldau consume topic | head` must end when `head` does, even while the topic is silent and nothing is written. A pipe
reports that its reader is gone as an error event on our end, which the two `stop_…` context managers watch for.
"""

import _thread
import asyncio
import os
import select
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import IO


def discard_output(stream: IO[str]) -> None:
    """Point the stream at /dev/null, so that flushing its buffer at exit does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def ignore_full_disk(stream: IO[str]) -> Iterator[None]:
    """For messages beside the actual work, which continues if they cannot be written."""
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError:
        discard_output(stream)


@contextmanager
def divert_standard_error() -> Iterator[Callable[[], None]]:
    """Send standard error, and that of processes started meanwhile, to a temporary file until the yielded function is
    called. If the work fails before that, the file's content is printed."""
    original = os.dup(2)
    with tempfile.TemporaryFile() as file:
        is_diverted = True

        def restore() -> None:
            nonlocal is_diverted
            if is_diverted:
                is_diverted = False
                sys.stderr.flush()
                os.dup2(original, 2)

        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            yield restore
        except Exception:
            if is_diverted:
                restore()
                file.seek(0)
                os.write(2, file.read())
            raise
        finally:
            restore()
            os.close(original)


def write_out(data: bytes) -> None:
    """Write all of it: an unbuffered stream may accept only a part of a large write."""
    out = sys.stdout.buffer
    left = memoryview(data)
    while left:
        left = left[out.write(left) or 0 :]
    out.flush()


@asynccontextmanager
async def stop_on_broken_pipe() -> AsyncIterator[None]:
    """Raise `BrokenPipeError` in this task as soon as the reader of standard output is gone."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    descriptor = _output_pipe()
    is_broken = False

    def cancel() -> None:
        nonlocal is_broken
        is_broken = True
        loop.remove_reader(descriptor)
        task.cancel()

    if descriptor >= 0:
        loop.add_reader(descriptor, cancel)  # the write end is never readable: only closing the read end wakes us
    try:
        yield
    except asyncio.CancelledError:
        if not is_broken:
            raise
        task.uncancel()
        raise BrokenPipeError from None
    finally:
        if descriptor >= 0:
            loop.remove_reader(descriptor)


@contextmanager
def stop_thread_on_broken_pipe() -> Iterator[None]:
    """Like `stop_on_broken_pipe` for work that blocks the main thread: a second thread watches the pipe."""
    descriptor = _output_pipe()
    if descriptor < 0:
        yield
        return
    ended, end = os.pipe()
    is_raised = False

    def on_sigpipe(number: int, _: object) -> None:  # noqa: ARG001
        nonlocal is_raised
        if not is_raised and _is_broken(descriptor):
            is_raised = True  # once: closing the consumer must not be interrupted
            raise BrokenPipeError

    def watch() -> None:
        if _is_broken(descriptor, ended):
            # Not SIGINT: background processes of a shell ignore it.
            _thread.interrupt_main(signal.SIGPIPE)

    previous = signal.signal(signal.SIGPIPE, on_sigpipe)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(ended)
        signal.signal(signal.SIGPIPE, previous)


def _is_broken(descriptor: int, ended: int = -1) -> bool:
    """Return whether the pipe has no reader: at once, or, if `ended` is given, when either of the two is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are reported without asking for any event
    if ended >= 0:
        poll.register(ended, select.POLLIN)
    return descriptor in dict(poll.poll(None if ended >= 0 else 0))


def _output_pipe() -> int:
    """Return the descriptor of standard output if it is a pipe, else -1."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else -1
    except (OSError, ValueError):
        return -1
