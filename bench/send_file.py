"""Baseline for fetch: each request of a fixed size gets a head and the next slice of a file (sendfile)."""

import argparse
import os
import socket
from pathlib import Path

from baseline_server import RECEIVE_BYTES, Watch, arguments, serve


class Sent:
    """A connection that walks through the file, slice by slice, and begins again at its end."""

    def __init__(self, connection: socket.socket, watch: Watch, options: argparse.Namespace) -> None:
        self._connection = connection
        self._connection.setblocking(False)
        self._watch = watch
        self._file = os.open(options.file, os.O_RDONLY)
        self._file_bytes = os.fstat(self._file).st_size // options.slice_bytes * options.slice_bytes
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._request_bytes = options.request_bytes
        self._head = bytes(options.head_bytes)
        self._slice_bytes = options.slice_bytes
        self._received_bytes = 0
        self._begun = 0
        self._position = 0
        self._head_rest = 0
        self._slice_rest = 0
        self._is_blocked = False

    def readable(self) -> bool:
        count = self._connection.recv_into(self._view)
        self._received_bytes += count
        if count and not self._is_blocked:
            self.writable()
        return bool(count)

    def writable(self) -> None:
        try:
            while self._slice_rest or self._begin():
                self._send_some()
        except BlockingIOError:
            self._block(True)
        else:
            self._block(False)

    def _begin(self) -> bool:
        if self._begun == self._received_bytes // self._request_bytes:
            return False
        self._begun += 1
        self._head_rest, self._slice_rest = len(self._head), self._slice_bytes
        return True

    def _send_some(self) -> None:
        if self._head_rest:
            self._head_rest -= self._connection.send(self._head[-self._head_rest :], socket.MSG_MORE)
        else:
            sent = os.sendfile(self._connection.fileno(), self._file, self._position, self._slice_rest)
            self._slice_rest -= sent
            self._position = (self._position + sent) % self._file_bytes

    def _block(self, is_blocked: bool) -> None:
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            self._watch.for_writing(is_blocked)

    def close(self) -> None:
        self._connection.close()
        os.close(self._file)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--file", type=Path, required=True, help="what is sent")
    parser.add_argument("--request-bytes", type=int, required=True, help="size of a request")
    parser.add_argument("--head-bytes", type=int, required=True, help="size of the part before the slice")
    parser.add_argument("--slice-bytes", type=int, required=True, help="size of the slice in a response")
    options = parser.parse_args()
    serve(options, lambda connection, watch: Sent(connection, watch, options))


if __name__ == "__main__":
    main()
