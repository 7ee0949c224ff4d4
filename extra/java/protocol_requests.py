"""The same request to two brokers, as bytes on a socket, and responses as plain values to compare."""

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from moldau.wire.codec import decode_response
from moldau.wire.framing import RequestHeader, frame_request, parse_response_header

WAIT_S: Final = 15.0
CLOSED: Final = "the connection was closed"

# Fields that differ between brokers or runs, and error messages.
OWN: Final = frozenset(
    {
        "throttle_time_ms",
        "error_message",
        "topic_id",
        "cluster_id",
        "host",
        "port",
        "session_id",
        "producer_id",
        "log_append_time_ms",
        "documentation",
        "finalized_features_epoch",
    }
)


@dataclass(frozen=True)
class Scene:
    """The topics of a request. Each broker assigns its own topic ids."""

    version: int
    topic: str
    topic_id: bytes
    unused: str  # the name of a missing topic


@dataclass(frozen=True)
class Request:
    """A request, built for each broker and version, and the response fields that may differ."""

    name: str
    versions: Iterable[int]
    request: Callable[[Scene], Any]
    own: frozenset[str] = frozenset()


class BrokerConnection:
    """One connection to a broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, version: int, request: Any) -> Any:
        """Return the response, or `CLOSED`."""
        header = RequestHeader(request.API_KEY, version, 1, "asker")
        try:
            self._socket.sendall(b"".join(bytes(piece) for piece in frame_request(header, request)))  # type: ignore[arg-type]
            frame = memoryview(self._read(int.from_bytes(self._read(4), "big")))
        except (EOFError, ConnectionError):
            return CLOSED
        _, position = parse_response_header(request.API_KEY, version, frame)
        return decode_response(request.API_KEY, version, frame[position:])

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data


def plain(value: Any, without: Iterable[str] = OWN) -> Any:
    """Return a message as dictionaries, without the given fields."""
    if isinstance(value, list | tuple):
        return [plain(each, without) for each in value]
    if isinstance(value, memoryview):
        return bytes(value)
    if hasattr(value, "__slots__") and not isinstance(value, bytes | str):
        names = [name for name in value.__slots__ if name not in without and not name.startswith("_")]
        return {name: plain(getattr(value, name), without) for name in names}
    return value


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Return the paths at which the two differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [line for name in ours for line in differences(ours[name], theirs.get(name), f"{where}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{where}[{index}]")]
    return [] if ours == theirs else [f"{where}: we say {ours!r:.300}, Kafka says {theirs!r:.300}"]
