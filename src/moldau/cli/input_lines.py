"""Lines from files and standard input, a chunk at a time, without blocking the event loop."""

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from moldau.cli.errors import CommandError
from moldau.model.units import KiB, MiB

CHUNK_BYTES: Final = 256 * KiB
LINE_BYTES_MAX: Final = 100 * MiB - 64 * KiB  # brokers close the connection on requests above 100 MiB
LINE_END: Final = b"\n"
STANDARD_INPUT: Final = Path("-")
STANDARD_INPUT_NAME: Final = "standard input"


class LineChunk(NamedTuple):
    """Lines that were read together, and whether the input pauses after them."""

    lines: list[bytes]
    is_pause: bool
    source: str  # for error messages: a path, or "standard input"
    first_line: int  # the number of the first line in its source


async def read_lines(paths: list[Path]) -> AsyncIterator[LineChunk]:
    """Yield lines as they arrive, in order. `-`, or no path, is standard input."""
    for path in paths or [STANDARD_INPUT]:
        if path == STANDARD_INPUT and not _has_descriptor():
            yield LineChunk(_split(sys.stdin.buffer.read()), True, STANDARD_INPUT_NAME, 1)
            continue
        descriptor = sys.stdin.fileno() if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)
        try:
            number = 1
            async for lines, is_pause in _lines(descriptor):
                yield LineChunk(lines, is_pause, STANDARD_INPUT_NAME if path == STANDARD_INPUT else str(path), number)
                number += len(lines)
        except IsADirectoryError as error:  # raised by the read, without a path
            raise IsADirectoryError(error.errno, error.strerror, str(path)) from None
        finally:
            if path != STANDARD_INPUT:
                os.close(descriptor)


def _has_descriptor() -> bool:
    """Return whether standard input has a file descriptor; a test may replace it with an object without one."""
    try:
        return sys.stdin.fileno() >= 0
    except OSError:
        return False


def _split(text: bytes) -> list[bytes]:
    *lines, rest = text.split(LINE_END)
    return [*lines, rest] if rest else lines


async def _lines(descriptor: int) -> AsyncIterator[tuple[list[bytes], bool]]:
    partial = bytearray()  # grows in place: bytes would be copied with each chunk of a long line
    while chunk := await _read(descriptor):
        yield _complete_lines(partial, chunk), not select.select([descriptor], [], [], 0)[0]
    yield [bytes(partial)] if partial else [], True


def _complete_lines(partial: bytearray, chunk: bytes) -> list[bytes]:
    """Return the lines that end in this chunk; the rest becomes the next partial line."""
    lines = []
    *ends, rest = chunk.split(LINE_END)
    for end in ends:
        lines.append(bytes(_append(partial, end)) if partial else end)
        partial.clear()
    _append(partial, rest)
    return lines


def _append(partial: bytearray, piece: bytes) -> bytearray:
    partial += piece
    if len(partial) > LINE_BYTES_MAX:
        raise CommandError(f"a line is longer than {LINE_BYTES_MAX} bytes, the largest record; is this a text file?")
    return partial


async def _read(descriptor: int) -> bytes:
    """Return the next chunk, b"" at the end. Pipes and terminals are awaited, files are read at once."""
    loop = asyncio.get_running_loop()
    is_readable: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _resolve, is_readable)
    except (PermissionError, NotImplementedError):  # epoll rejects plain files: they are always readable
        return os.read(descriptor, CHUNK_BYTES)
    try:
        await is_readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
