"""Lines of standard input and files for `moldau produce`: complete, ordered and bounded."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from moldau.cli import input_lines
from moldau.cli.errors import CommandError
from moldau.cli.input_lines import CHUNK_BYTES, read_lines

pytestmark = pytest.mark.proves("A4", part="produce and consume")


async def read(path: Path) -> list[bytes]:
    return [line async for arrived in read_lines([path]) for line in arrived.lines]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe, of which each read returns a small part."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"a", b"", b"b"],
        [b"x" * CHUNK_BYTES],
        [b"x" * (CHUNK_BYTES - 1), b"y" * CHUNK_BYTES, b"", b"z" * (3 * CHUNK_BYTES + 7), b"end"],
    ],
    ids=["none", "an empty one", "short", "a chunk", "over several chunks"],
)
@pytest.mark.parametrize("last", [b"", b"no end"], ids=["ended", "the last without its end"])
def test_lines_are_complete_and_ordered_across_chunks(lines: list[bytes], last: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + last)
    assert asyncio.run(read(path)) == [*lines, *([last] if last else [])]


def test_long_line_is_read_in_linear_time(pipe: Path) -> None:
    line = b"x" * 50_000_000  # with quadratic concatenation it takes half a minute
    writer = threading.Thread(target=pipe.write_bytes, args=(line + b"\nnext\n",))
    writer.start()
    began_s = time.process_time()
    assert asyncio.run(read(pipe)) == [line, b"next"]
    assert time.process_time() - began_s < 5
    writer.join()


def test_line_above_the_record_limit_is_rejected_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "LINE_BYTES_MAX", CHUNK_BYTES * 2)
    path = tmp_path / "lines"
    path.write_bytes(b"first\n" + b"x" * CHUNK_BYTES * 2 + b"\n")
    assert len(asyncio.run(read(path))) == 2
    path.write_bytes(b"first\n" + b"x" * (CHUNK_BYTES * 2 + 1) + b"\n")
    with pytest.raises(CommandError, match="longer than 524288 bytes, the largest record"):
        asyncio.run(read(path))


def test_directory_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as rejected:
        asyncio.run(read(tmp_path))
    assert rejected.value.filename == str(tmp_path)
