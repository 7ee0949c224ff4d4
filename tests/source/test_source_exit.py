"""The exit of a stream reader's process; the test plays Spark's side of its connection."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.serializers import read_int, write_int, write_with_length

from pyspark_moldau.data_source import MoldauSource
from pyspark_moldau.source.worker_exit import ignore_broken_pipe, ignore_broken_pipe_at_exit

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
SECRET = "secret"
ENDED_S_MAX = 60
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def begin(stream: Any, folder: Path) -> None:
    """Send Spark's initialisation messages, up to the reader's confirmation."""
    length = read_int(stream)
    assert stream.read(length) == SECRET.encode()
    write_with_length(b"ok", stream)
    stream.flush()
    read_int(stream)  # process id
    source = MoldauSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    write_with_length(b"%d.%d" % sys.version_info[:2], stream)
    write_with_length(str(folder).encode(), stream)
    write_int(0, stream)
    write_with_length(cloudpickle.dumps(source), stream)
    write_with_length(b'{"type": "struct", "fields": []}', stream)
    write_int(1, stream)
    stream.flush()
    assert read_int(stream) == 0


def errors_after_reset(folder: Path) -> str:
    """Return the standard error of a reader whose connection is reset."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": SECRET}
        process = subprocess.Popen(
            [sys.executable, "-m", RUNNER], env={**os.environ, **place}, stderr=subprocess.PIPE, text=True
        )
        server.settimeout(ENDED_S_MAX)
        connection, _ = server.accept()
        with connection, connection.makefile("rwb", 65536) as stream:
            begin(stream, folder)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        _, errors = process.communicate(timeout=ENDED_S_MAX)
    assert process.returncode != 0
    return errors


@pytest.mark.proves("D4", part="terminal")
def test_stopped_query_leaves_no_traceback(tmp_path: Path) -> None:
    assert errors_after_reset(tmp_path) == ""


def test_other_errors_at_exit_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ignore_broken_pipe(BrokenPipeError, BrokenPipeError("closed"), None)
    assert capsys.readouterr().err == ""
    ignore_broken_pipe(OSError, OSError("disk"), None)
    assert capsys.readouterr().err == "OSError: disk\n"


def test_exit_hook_is_installed_in_stream_readers_only() -> None:
    ignore_broken_pipe_at_exit()
    assert sys.excepthook is not ignore_broken_pipe
