"""The quotas of one connection, and what one of its requests uses."""

from collections.abc import Coroutine
from typing import Any, Final

from moldau.broker.quotas.client_quotas import ClientQuotas, EntityQuota
from moldau.broker.quotas.quota_index import QuotaKind
from moldau.model.ports import Clock
from moldau.model.settings import INT_MAX
from moldau.model.units import SECOND_MS
from moldau.wire.messages import (
    FetchRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    WriteTxnMarkersRequest,
)

PRODUCE: Final = ProduceRequest.API_KEY
FETCH: Final = FetchRequest.API_KEY
PERCENT_PER_MS: Final = 100 / SECOND_MS
FREE_REQUESTS: Final = 7
FREE_SHARE: Final = 1 / 16  # of the room: other connections may share the quota
FREE_PERCENT_SECONDS: Final = 1.0  # 10 ms, which free requests do not take

# Requests whose time is not charged: between brokers, and before a client is authenticated.
EXEMPT_APIS: Final = frozenset(
    {WriteTxnMarkersRequest.API_KEY, SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY}
)


class ConnectionQuota:
    """The quotas of the client that uses a connection, looked up again when they change.

    Fast paths are used while all requests of the connection have the same client id: they are charged to it.
    """

    __slots__ = (
        "_client",
        "_clock",
        "_free_bytes",
        "_free_requests",
        "_generation",
        "_has_several_clients",
        "_quotas",
        "_started_ms",
        "_unsettled_bytes",
        "_untimed",
        "fetch",
        "produce",
        "request",
    )

    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas
        self._clock = quotas.clock
        self._generation = -1
        self._client: tuple[str, str | None] | None = None
        self._has_several_clients = False
        self._started_ms = 0.0
        self._free_requests = 0  # of fast paths, until the quotas are looked at again
        self._free_bytes = 0.0
        self._unsettled_bytes = 0
        self._untimed = 0
        self.produce: EntityQuota | None = None
        self.fetch: EntityQuota | None = None
        self.request: EntityQuota | None = None

    # -- requests that a fast path may handle

    def has_room(self, frame: memoryview) -> bool:
        """Whether the request would not be throttled."""
        if self._free_requests and len(frame) <= self._free_bytes and self._generation == self._quotas.generation:
            return True
        return self._has_room(frame)

    def _has_room(self, frame: memoryview) -> bool:
        self._free_requests = 0
        if self._generation != self._quotas.generation or self._has_several_clients:
            return False
        now_ms = self._started_ms = self._clock.monotonic_ms()
        self._settle(now_ms)
        if self.produce is not None and frame[1] == PRODUCE and self.produce.room(now_ms) < len(frame):
            return False
        return self.request is None or self.request.room(now_ms) > 0

    def charge(self, frame: memoryview) -> None:
        """Charge a request that a fast path has handled. Fetches on fast paths are those of followers: exempt."""
        api_key = frame[1]
        if api_key == PRODUCE:
            self._unsettled_bytes += len(frame)
        if api_key != FETCH:
            self._untimed += 1
        if self._free_requests:
            self._free_requests -= 1
            self._free_bytes -= len(frame)
        else:
            self._charge_timed()

    def _charge_timed(self) -> None:
        """Charge a request whose time is known, and that time for the requests before it, whose time was not taken.

        The next requests are free of this work, as long as they are small beside the room of the quota.
        """
        now_ms = self._clock.monotonic_ms()
        if self.request is not None and self._untimed:
            self.request.record((now_ms - self._started_ms) * self._untimed * PERCENT_PER_MS, now_ms)
        self._untimed = 0
        self._settle(now_ms)
        self._free_requests = FREE_REQUESTS
        self._free_bytes = INT_MAX if self.produce is None else self.produce.room(now_ms) * FREE_SHARE
        if self.request is not None and self.request.room(now_ms) * FREE_SHARE < FREE_PERCENT_SECONDS:
            self._free_requests = 0

    def _settle(self, now_ms: float) -> None:
        """Charge the bytes of free requests."""
        if self._unsettled_bytes and self.produce is not None:
            self.produce.record(self._unsettled_bytes, now_ms)
        self._unsettled_bytes = 0

    # -- requests of handlers

    def begin(self, principal: str, client_id: str | None, request_bytes: int) -> "RequestUsage":
        """The usage of a request that a handler takes."""
        self._free_requests = 0
        self._settle(self._clock.monotonic_ms())
        client = principal, client_id
        if client != self._client:
            self._has_several_clients = self._client is not None and client_id != self._client[1]
            self._client = client
            self._generation = -1
        if self._generation != self._quotas.generation:
            find = self._quotas.find
            self.produce = find(QuotaKind.PRODUCE, principal, client_id)
            self.fetch = find(QuotaKind.FETCH, principal, client_id)
            self.request = find(QuotaKind.REQUEST, principal, client_id)
            self._generation = self._quotas.generation
        return RequestUsage(self, self._clock, request_bytes)

    @property
    def window_ms(self) -> float:
        return self._quotas.settings().quota_window_size_seconds * SECOND_MS


class RequestUsage:
    """Usage of a client's quotas by one request."""

    __slots__ = (
        "_clock",
        "_fetch",
        "_is_consumer_fetch",
        "_produce",
        "_quota",
        "_request",
        "_request_bytes",
        "_spent_ms",
        "_throttle_ms",
    )

    def __init__(self, quota: ConnectionQuota, clock: Clock, request_bytes: int) -> None:
        self._clock = clock
        self._quota = quota
        self._produce = quota.produce
        self._fetch = quota.fetch
        self._request = quota.request
        self._request_bytes = request_bytes
        self._is_consumer_fetch = False
        self._spent_ms = 0.0
        self._throttle_ms = 0

    def timed(self, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """The handler, with the time of its steps added up if there is a quota of request time."""
        return coroutine if self._request is None else _TimedHandler(coroutine, self, self._clock)

    def spend(self, elapsed_ms: float) -> None:
        self._spent_ms += elapsed_ms

    # -- called by the fetch of consumers

    def fetch_bytes_max(self) -> int:
        """The size of a response that is worth one window of the quota, so that no fetch causes a long pause."""
        self._is_consumer_fetch = True
        fetch = self._fetch
        if fetch is None:
            return 1 << 62
        return max(1, int(fetch.limit * self._quota.window_ms / SECOND_MS))

    def must_pause(self) -> bool:
        """Whether the quota is exceeded already: then the response has no records."""
        fetch = self._fetch
        return fetch is not None and self._charge(fetch, 0) > 0

    def fetched(self, records_bytes: int) -> None:
        """Charge a response; a pause follows it if it exceeds the quota."""
        if self._fetch is not None and records_bytes:
            self._charge(self._fetch, records_bytes)

    # -- called by the connection

    def finish(self, api_key: int, response: Any) -> int:
        """Charge the request, put the throttle time into the response, and return it."""
        if api_key == PRODUCE and self._produce is not None:
            self._charge(self._produce, self._request_bytes)
        if self._request is not None and self._is_charged_for_time(api_key):
            self._charge_time(self._request, can_throttle=response is not None)
        decided_ms: int = getattr(response, "throttle_time_ms", 0)  # by the controller
        throttle_ms = max(self._throttle_ms, decided_ms)
        if throttle_ms > decided_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        return throttle_ms

    def _is_charged_for_time(self, api_key: int) -> bool:
        return self._is_consumer_fetch if api_key == FETCH else api_key not in EXEMPT_APIS

    def _charge(self, entity: EntityQuota, amount: float) -> int:
        now_ms = self._clock.monotonic_ms()
        throttle_ms = entity.record(amount, now_ms)
        if throttle_ms:
            entity.throttled(throttle_ms, now_ms)
            self._throttle_ms = max(self._throttle_ms, throttle_ms)
        return throttle_ms

    def _charge_time(self, entity: EntityQuota, *, can_throttle: bool) -> None:
        """Charge the time of the handler. As in Kafka, one pause is a window at most."""
        now_ms = self._clock.monotonic_ms()
        throttle_ms = min(entity.record(self._spent_ms * PERCENT_PER_MS, now_ms), int(self._quota.window_ms))
        if throttle_ms and can_throttle:
            entity.throttled(throttle_ms, now_ms)
            self._throttle_ms = max(self._throttle_ms, throttle_ms)


class _TimedHandler(Coroutine[Any, Any, Any]):
    """A handler whose steps are timed."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], usage: RequestUsage, clock: Clock) -> None:
        self._coroutine = coroutine
        self._usage = usage
        self._clock = clock

    def send(self, value: Any) -> Any:
        started_ms = self._clock.monotonic_ms()
        try:
            return self._coroutine.send(value)
        finally:
            self._usage.spend(self._clock.monotonic_ms() - started_ms)

    def throw(self, *error: Any) -> Any:
        started_ms = self._clock.monotonic_ms()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._usage.spend(self._clock.monotonic_ms() - started_ms)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()
