"""Baseline for latency: what comes in goes back."""

import socket

from baseline_server import RECEIVE_BYTES, Watch, arguments, serve


class Echoed:
    """A connection that echoes all data."""

    def __init__(self, connection: socket.socket, _: Watch) -> None:
        self._connection = connection
        self._view = memoryview(bytearray(RECEIVE_BYTES))

    def readable(self) -> bool:
        count = self._connection.recv_into(self._view)
        self._connection.sendall(self._view[:count])
        return bool(count)

    def writable(self) -> None:
        raise AssertionError("sends are synchronous, so pause_writing is never called")

    def close(self) -> None:
        self._connection.close()


def main() -> None:
    serve(arguments(__doc__).parse_args(), Echoed)


if __name__ == "__main__":
    main()
