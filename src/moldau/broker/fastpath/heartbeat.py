"""Heartbeats that repeat an earlier one of their connection, word for word but for the correlation id.

A group member sends the same request until its group rebalances, and nearly always gets the same response. The handler
leaves a function that takes the same decision again (`Repeat`). If that decision leads to the same response, the cached
response is sent with the new correlation id. Errors and changed responses are left to the handler.
"""

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.broker.requests.fast_path import FastPath, FastPathConnection
from moldau.model.errors import KafkaError
from moldau.wire.framing import frame_response

if TYPE_CHECKING:
    from moldau.broker.fastpath.hosts import FastPathHost
    from moldau.broker.requests.context import RequestContext
    from moldau.broker.runtime.meters import ApiMeter

FRAME_BYTES_MAX: Final = 1024
CACHED_REQUESTS_MAX: Final = 8  # of one connection
HEAD_BYTES: Final = 8  # API key, version and correlation id

Repeat = Callable[
    [float], bool
]  # takes the decision of an earlier request again at this time: is the response the same?

_read_head = Struct(">4si").unpack_from
_pack_correlation = Struct(">i").pack_into
_CORRELATION_POSITION: Final = 4  # in a response, behind its length


class RepeatFactory(Protocol):
    """Makes the `Repeat` of a request that was handled; None if its response will not be the same again."""

    def __call__(self, request: Any, context: "RequestContext[Any]", response: Any) -> Repeat | None: ...


class CachedHeartbeat:
    """One request that was handled before, and its response."""

    __slots__ = ("_response", "repeat")

    def __init__(self, repeat: Repeat, response: bytearray) -> None:
        self.repeat = repeat
        self._response = response

    def response_to(self, frame: memoryview) -> bytearray:
        response = self._response.copy()  # the previous copy may still be queued
        _, correlation_id = _read_head(frame)
        _pack_correlation(response, _CORRELATION_POSITION, correlation_id)
        return response


class HeartbeatCache:
    """The heartbeats that one connection repeats."""

    __slots__ = ("_cached",)

    def __init__(self) -> None:
        self._cached: dict[bytes, CachedHeartbeat] = {}

    def __len__(self) -> int:
        return len(self._cached)

    def find(self, frame: memoryview) -> CachedHeartbeat | None:
        return self._cached.get(_cache_key(frame)) if HEAD_BYTES <= len(frame) <= FRAME_BYTES_MAX else None

    def clear(self) -> None:
        self._cached.clear()

    def add(self, frame: memoryview, heartbeat: CachedHeartbeat) -> None:
        if len(frame) > FRAME_BYTES_MAX:
            return
        if len(self._cached) >= CACHED_REQUESTS_MAX:
            self._cached.clear()
        self._cached[_cache_key(frame)] = heartbeat


class HeartbeatFastPath:
    """Heartbeats of one API on one connection."""

    __slots__ = ("_authorizer", "_broker", "_cache", "_connection", "_generation", "_make_repeat", "_meter")

    tolerates_delay: Final = True  # a session timeout is seconds

    def __init__(
        self, connection: FastPathConnection, broker: "FastPathHost", meter: "ApiMeter", make_repeat: RepeatFactory
    ) -> None:
        self._connection = connection
        self._broker = broker
        self._meter = meter
        self._make_repeat = make_repeat
        self._cache = HeartbeatCache()
        self._authorizer = broker.authorizer
        self._generation = broker.authorizer.generation  # of the ACLs that allowed the cached heartbeats

    def try_handle(self, frame: memoryview) -> bool:
        heartbeat = self._cache.find(frame)
        if heartbeat is None or not self._broker.write_coalescer.is_empty:
            return False
        if self._authorizer.generation != self._generation:
            return False
        clock, connection = self._broker.clock, self._connection
        started_ms = clock.monotonic_ms()
        try:
            if not heartbeat.repeat(started_ms):
                return False
        except KafkaError:
            return False
        connection.last_active_ms = started_ms
        self._meter.finished(clock.monotonic_ms() - started_ms)
        connection.responses.send([heartbeat.response_to(frame)])
        return True

    def learn(self, frame: memoryview, request: Any, context: "RequestContext[FastPathHost]", response: Any) -> None:
        if response is None:
            return
        repeat = self._make_repeat(request, context, response)
        if repeat is None:
            return
        pieces = frame_response(request.API_KEY, context.api_version, context.correlation_id, response)
        if self._authorizer.generation != self._generation:
            self._cache.clear()
            self._generation = self._authorizer.generation
        response_frame = bytearray().join(pieces)  # type: ignore[arg-type]
        self._cache.add(frame, CachedHeartbeat(repeat, response_frame))

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing waits."""


def create(
    connection: FastPathConnection,
    request: Any,  # noqa: ARG001 - the common signature
    context: "RequestContext[FastPathHost]",
    meter: "ApiMeter",
    *,
    make_repeat: RepeatFactory,
) -> FastPath:
    return HeartbeatFastPath(connection, context.broker, meter, make_repeat)


def _cache_key(frame: memoryview) -> bytes:
    """The frame without its correlation id."""
    return frame[:4].tobytes() + frame[HEAD_BYTES:].tobytes()
