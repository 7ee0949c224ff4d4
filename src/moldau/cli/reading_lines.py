"""Lines from files and standard input, a chunk at a time, without holding up the event loop."""

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from moldau.cli.errors import Complaint
from moldau.model.units import KiB, MiB

CHUNK_BYTES: Final = 256 * KiB
LINE_BYTES_MAX: Final = 100 * MiB
STANDARD_INPUT: Final = Path("-")


class Arrived(NamedTuple):
    """Lines that came together, and whether the input pauses after them."""

    lines: list[bytes]
    is_pause: bool


async def lines_of(paths: list[Path], separator: bytes = b"\n") -> AsyncIterator[Arrived]:
    """The lines as they arrive, in order. `-`, or no path, is standard input."""
    for path in paths or [STANDARD_INPUT]:
        if path == STANDARD_INPUT and not _has_descriptor():
            yield Arrived(_split(sys.stdin.buffer.read(), separator), True)
            continue
        descriptor = sys.stdin.fileno() if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)
        try:
            async for arrived in _lines(descriptor, separator):
                yield arrived
        finally:
            if path != STANDARD_INPUT:
                os.close(descriptor)


def _has_descriptor() -> bool:
    """Not when the program runs inside another, which gives it a stream of its own making."""
    try:
        return sys.stdin.fileno() >= 0
    except OSError:
        return False


def _split(text: bytes, separator: bytes) -> list[bytes]:
    *lines, rest = text.split(separator)
    return [*lines, rest] if rest else lines


async def _lines(descriptor: int, separator: bytes) -> AsyncIterator[Arrived]:
    rest = b""
    while chunk := await _read(descriptor):
        *lines, rest = (rest + chunk).split(separator)
        if len(rest) > LINE_BYTES_MAX:
            raise Complaint(f"a line is longer than {LINE_BYTES_MAX} bytes; is it a text file?")
        yield Arrived(lines, not select.select([descriptor], [], [], 0)[0])
    yield Arrived([rest] if rest else [], True)


async def _read(descriptor: int) -> bytes:
    """The next chunk; b"" at the end. Pipes and terminals are awaited, files are simply read."""
    loop = asyncio.get_running_loop()
    is_readable: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _resolve, is_readable)
    except (PermissionError, NotImplementedError):  # epoll refuses plain files: they are always readable
        return os.read(descriptor, CHUNK_BYTES)
    try:
        await is_readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
