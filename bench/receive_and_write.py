"""Baseline for produce: receive into a buffer, write it to a file, respond to each frame. Nothing is parsed."""

import itertools
import os
import socket
from pathlib import Path

from baseline_server import RECEIVE_BYTES, Watch, arguments, serve

_numbers = itertools.count()


class Written:
    """A connection and the file that takes what it sends; the file goes when the connection does."""

    def __init__(self, connection: socket.socket, folder: Path, frame_bytes: int, reply_bytes: int) -> None:
        self._connection = connection
        self._path = folder / f"received-{os.getpid()}-{next(_numbers)}"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._frame_bytes = frame_bytes
        self._reply = bytes(reply_bytes)
        self._received_bytes = 0
        self._responses = 0

    def readable(self) -> bool:
        count = self._connection.recv_into(self._view)
        if not count:
            return False
        os.write(self._file, self._view[:count])
        self._received_bytes += count
        due = self._received_bytes // self._frame_bytes - self._responses
        if due:
            self._connection.sendall(self._reply * due)
            self._responses += due
        return True

    def writable(self) -> None:
        raise AssertionError("sends are synchronous, so pause_writing is never called")

    def close(self) -> None:
        self._connection.close()
        os.close(self._file)
        self._path.unlink()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the files go")
    parser.add_argument("--frame-bytes", type=int, required=True, help="size of a request")
    parser.add_argument("--reply-bytes", type=int, required=True, help="size of a response")
    options = parser.parse_args()

    def accept(connection: socket.socket, _: Watch) -> Written:
        return Written(connection, options.folder, options.frame_bytes, options.reply_bytes)

    serve(options, accept)


if __name__ == "__main__":
    main()
