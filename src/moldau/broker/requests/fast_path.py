"""The interface between a connection and its fast paths; `moldau.broker.fastpath` explains how they work."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from moldau.broker.requests.context import RequestContext
    from moldau.broker.runtime.meters import ApiMeter
    from moldau.model.ports import Connection, Piece
    from moldau.wire.framing import RequestHeader


class PendingResponse(Protocol):
    """The place of a response in the order of responses, before it is ready."""

    def send(self, pieces: "list[Piece]") -> None: ...


class Responses(Protocol):
    """Responses of one connection, in the order of its requests."""

    def send(self, pieces: "list[Piece]") -> None: ...

    def reserve(self, weight: int) -> PendingResponse: ...


class RequestUsage(Protocol):
    """Usage of a client's quotas by one request; `moldau.broker.quotas` implements it."""

    def timed(self, coroutine: "Coroutine[Any, Any, Any]") -> "Coroutine[Any, Any, Any]":
        """The handler, with its time measured where that is limited."""
        ...

    def fetch_bytes_max(self) -> int:
        """The most that a response to a consumer's fetch should carry."""
        ...

    def must_pause(self) -> bool:
        """Whether the consumer's quota is exceeded already."""
        ...

    def fetched(self, records_bytes: int) -> None:
        """Charge a response to a consumer's fetch."""
        ...

    def finish(self, api_key: int, response: Any) -> int:
        """Charge the request; returns for how many milliseconds the connection is muted, as the response says."""
        ...


class RequestQuota(Protocol):
    """The quotas of a connection's principal and client id.

    Requests of handlers are charged, and throttled, when they finish. A fast path does not throttle: its requests are
    charged while the quota has room, and go to the handler when it has none.
    """

    def has_room(self, frame: memoryview) -> bool: ...

    def charge(self, frame: memoryview) -> None: ...

    def begin(self, principal: str, client_id: str | None, request_bytes: int) -> RequestUsage: ...


class FastPathConnection(Protocol):
    """The connection that a fast path belongs to."""

    last_active_ms: float

    @property
    def responses(self) -> Responses: ...

    @property
    def transport(self) -> "Connection": ...

    def context(self, header: "RequestHeader", started_ms: float) -> "RequestContext[Any]":
        """The context of a request that came over this connection."""
        ...

    def fail(self, what: str, error: Exception) -> None:
        """Log an error that no response can carry, and close the connection."""
        ...


class FastPath(Protocol):
    """Shortened handling of one API on one connection."""

    @property
    def tolerates_delay(self) -> bool:
        """Whether frames may be read some milliseconds late, together with those of other connections."""
        ...

    def try_handle(self, frame: memoryview) -> bool:
        """Handle the request, or return False without any effect."""
        ...

    def learn(self, frame: memoryview, request: Any, context: "RequestContext[Any]", response: Any) -> None:
        """Cache a request that its handler was started with; `response` is None while the handler waits."""
        ...

    def flush(self) -> None:
        """Send the responses that were held back in this turn."""
        ...

    def close(self) -> None:
        """Release what waits: the connection is closed."""
        ...


class FastPathFactory(Protocol):
    """Creates the fast path of an API when the API is first used on a connection; None if this use has none."""

    def __call__(
        self, connection: FastPathConnection, request: Any, context: "RequestContext[Any]", meter: "ApiMeter"
    ) -> FastPath | None: ...
