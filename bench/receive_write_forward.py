"""Baseline for replicated produce: receive, write, forward to two others that do the same, respond once both have.

The two others are `receive_and_write.py`. Nothing is parsed.
"""

import itertools
import os
import socket
from pathlib import Path

from baseline_server import RECEIVE_BYTES, Watch, arguments, serve

_numbers = itertools.count()


class Forwarded:
    """A connection, its file, and a connection to each of the others; the file goes when the connection does."""

    def __init__(self, connection: socket.socket, watch: Watch, options: "Options") -> None:
        self._connection = connection
        self._options = options
        self._path = options.folder / f"forwarded-{os.getpid()}-{next(_numbers)}"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._reply = bytes(options.reply_bytes)
        self._responses = 0
        self._received_bytes = 0
        self._others = [_Other(self, each, options.others_reply_bytes) for each in options.others]
        self._watch = watch
        for other in self._others:
            watch.also(other.connection, other)

    def readable(self) -> bool:
        count = self._connection.recv_into(self._view)
        if not count:
            return False
        piece = self._view[:count]
        for other in self._others:
            other.connection.sendall(piece)
        os.write(self._file, piece)
        self._received_bytes += count
        self.response()
        return True

    def response(self) -> None:
        own = self._received_bytes // self._options.frame_bytes
        due = min(own, *(other.acknowledged for other in self._others)) - self._responses
        if due > 0:
            self._connection.sendall(self._reply * due)
            self._responses += due

    def writable(self) -> None:
        raise AssertionError("sends are synchronous, so pause_writing is never called")

    def close(self) -> None:
        for other in self._others:
            self._watch.no_longer(other.connection)
            other.connection.close()
        self._connection.close()
        os.close(self._file)
        self._path.unlink()


class _Other:
    """One that has a copy, and how many requests it has acknowledged."""

    def __init__(self, owner: Forwarded, address: str, reply_bytes: int) -> None:
        host, _, port = address.rpartition(":")
        self.connection = socket.create_connection((host, int(port)))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.acknowledged = 0
        self._owner = owner
        self._reply_bytes = reply_bytes
        self._received_bytes = 0

    def readable(self) -> bool:
        count = len(self.connection.recv(65_536))
        if not count:
            return False
        self._received_bytes += count
        self.acknowledged = self._received_bytes // self._reply_bytes
        self._owner.response()
        return True

    def writable(self) -> None:
        raise AssertionError("sends are synchronous, so pause_writing is never called")

    def close(self) -> None:
        self.connection.close()


class Options:
    """The options of the command line."""

    def __init__(self) -> None:
        parser = arguments(__doc__)
        parser.add_argument("--folder", type=Path, required=True, help="where the files go")
        parser.add_argument("--frame-bytes", type=int, required=True, help="size of a request")
        parser.add_argument("--reply-bytes", type=int, required=True, help="size of a response")
        parser.add_argument("--others", required=True, help="HOST:PORT,HOST:PORT of those that keep copies")
        parser.add_argument("--others-reply-bytes", type=int, required=True, help="size of their responses")
        self.parsed = parser.parse_args()
        self.folder: Path = self.parsed.folder
        self.frame_bytes: int = self.parsed.frame_bytes
        self.reply_bytes: int = self.parsed.reply_bytes
        self.others: list[str] = self.parsed.others.split(",")
        self.others_reply_bytes: int = self.parsed.others_reply_bytes


def main() -> None:
    options = Options()
    serve(options.parsed, lambda connection, watch: Forwarded(connection, watch, options))


if __name__ == "__main__":
    main()
