"""One connection to a broker as a sans-IO state machine: takes frames and time, returns effects.

    CONNECTING --opened--> NEGOTIATING --ApiVersions--> [AUTHENTICATING] --> READY --lost, broken or timed out--> CLOSED
                                                              ^                 |
                                                              +-session is over-+

Requests may be submitted in any phase; they are queued until READY and until fewer than the limit are in flight.
Responses arrive in request order (the protocol guarantees it), so a wrong correlation id means a broken stream. A
response timeout closes the connection: every later response would be stuck behind the missing one.

A session that the broker limits is renewed before the first request that is sent late in its lifetime (KIP-368).
Requests in flight still get their responses; the others wait until the session is renewed.
"""

import math
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, cast

from moldau import __version__
from moldau.client.errors import ConnectionLost, ResponseTimeout, TooManyPendingRequests, error_of
from moldau.client.security import Authentication
from moldau.client.settings import ClientSettings
from moldau.machines.access.exchange import Derive
from moldau.model.errors import ErrorCode, KafkaError, SaslAuthenticationFailed, UnsupportedVersion
from moldau.model.ports import Piece
from moldau.wire import codec, framing, messages
from moldau.wire.messages import Message

API_VERSIONS: Final = 18
PRODUCE: Final = 0
CORRELATION_ID_MAX: Final = 2**31 - 1
FIRST_CORRELATION_ID: Final = 1  # of a request, on a connection that needs only ApiVersions before
RENEWED_AFTER: Final = 0.85  # share of a session's lifetime; as in Kafka's clients, without their jitter

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")


class Phase(Enum):
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send these pieces, one whole frame."""

    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver the response to the request with this ticket; None if the protocol sends none (acks=0)."""

    ticket: int
    response: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the request with this ticket."""

    ticket: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection; no more effects follow."""

    reason: str


Effect = SendFrame | Deliver | Fail | Derive | Close


@dataclass(slots=True)
class _PendingRequest:
    """A queued or sent request. Internal ones (negotiation, authentication) have no ticket."""

    ticket: int | None
    request: Message | type[Message]  # a class where the caller encodes the request
    timeout_ms: float
    deadline_ms: float  # for sending the request; once it is sent, for its response
    version_at_most: int | None = None
    version_at_least: int = 0
    version: int = -1
    correlation_id: int = -1


class ClientConnection:
    """The protocol state of one connection: negotiated versions, pending requests and their deadlines."""

    def __init__(
        self,
        peer: str,
        settings: ClientSettings,
        authenticate: Callable[[], Authentication | None] = lambda: None,
    ) -> None:
        """`authenticate` starts an exchange, or returns None if the broker requires none."""
        self.phase = Phase.CONNECTING
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        self._peer = peer
        self._settings = settings
        self._authenticate = authenticate
        self._authentication: Authentication | None = None
        self._lifetime_ms = 0
        self._renew_at_ms = math.inf
        self._queued: deque[_PendingRequest] = deque()
        self._in_flight: deque[_PendingRequest] = deque()
        self._next_correlation_id = 0
        self._throttled_until_ms = 0.0
        self._end_reason = f"the connection to {peer} is closed"
        self._negotiated: dict[
            tuple[int, int | None, int], int
        ] = {}  # negotiated versions by API key and version bounds
        self.wake_at_ms = (
            math.inf
        )  # when to call `time_passed`, or earlier: updating it with every response is too expensive

    # Events

    def opened(self, now_ms: float) -> list[Effect]:
        """The connection is established: negotiate versions."""
        self.phase = Phase.NEGOTIATING
        known = codec.versions(API_VERSIONS)
        assert known is not None
        return self._negotiate(known[1], now_ms)

    def submit(
        self,
        ticket: int,
        request: Message,
        now_ms: float,
        *,
        timeout_ms: float | None = None,
        version_at_most: int | None = None,
        version_at_least: int = 0,
    ) -> list[Effect]:
        """Submit a request; it is completed exactly once under this ticket, by `Deliver` or `Fail`.

        The timeout applies to the time in the queue, and again to the response.
        """
        if self.phase is Phase.CLOSED:
            return [Fail(ticket, ConnectionLost(self._end_reason, was_sent=False))]
        if len(self._queued) >= self._settings.requests_waiting_max:
            return [
                Fail(
                    ticket, TooManyPendingRequests(f"{len(self._queued)} requests are already queued for {self._peer}")
                )
            ]
        request_timeout_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = now_ms + request_timeout_ms
        self._queued.append(
            _PendingRequest(ticket, request, request_timeout_ms, deadline_ms, version_at_most, version_at_least)
        )
        self.wake_at_ms = min(self.wake_at_ms, deadline_ms)
        return self._send_queued(now_ms)

    def try_put_in_flight(
        self, ticket: int, message: type[Message], versions: tuple[int, int], now_ms: float, timeout_ms: float
    ) -> tuple[int, int] | None:
        """Return version and correlation id of a request that its caller encodes; None if it cannot be sent now."""
        has_room = not self._queued and len(self._in_flight) < self._settings.requests_in_flight_max
        if self.phase is not Phase.READY or not has_room or not self._throttled_until_ms <= now_ms < self._renew_at_ms:
            return None
        oldest, newest = versions
        try:
            version = self.version_for(message.API_KEY, newest, oldest)
        except UnsupportedVersion:
            return None
        correlation_id = self._next_correlation_id
        deadline_ms = now_ms + timeout_ms
        self._in_flight.append(
            _PendingRequest(ticket, message, timeout_ms, deadline_ms, None, 0, version, correlation_id)
        )
        self._next_correlation_id = (correlation_id + 1) % CORRELATION_ID_MAX
        if deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms
        return version, correlation_id

    def complete_raw(self, frame: memoryview) -> bool:
        """Complete the oldest request, whose caller decoded the frame; False if the frame is not its response."""
        if (
            self.phase not in (Phase.READY, Phase.AUTHENTICATING)
            or _INT32.unpack_from(frame)[0] != self._in_flight[0].correlation_id
        ):
            return False
        self._in_flight.popleft()
        return True

    @property
    def has_queued(self) -> bool:
        """Whether requests are queued, which `time_passed` may send now."""
        return bool(self._queued)

    def received(self, frame: memoryview, now_ms: float) -> list[Effect]:
        """Handle a frame, without its length prefix. Delivered responses may keep views of it."""
        if self.phase is Phase.CLOSED:
            return []
        if not self._in_flight:
            return self._break("it sent an unexpected response")
        if len(frame) < 4 or _INT32.unpack_from(frame)[0] != self._in_flight[0].correlation_id:
            return self._break("it sent a response with a wrong correlation id")
        pending = self._in_flight.popleft()
        try:
            effects = self._receive(pending, frame, now_ms)
        except codec.Malformed as error:
            self._in_flight.appendleft(pending)
            return self._break(f"its response to {codec.api_name(pending.request.API_KEY)} is malformed: {error}")
        return effects

    def time_passed(self, now_ms: float) -> list[Effect]:
        """Fail timed-out requests; send throttled ones."""
        if self.phase is Phase.CLOSED:
            return []
        if any(each.deadline_ms <= now_ms for each in self._in_flight):
            return self._time_out_requests(now_ms)
        overdue = [each for each in self._queued if each.deadline_ms <= now_ms]
        if overdue:
            self._queued = deque(each for each in self._queued if each.deadline_ms > now_ms)
        effects = [*self._fail_timed_out(overdue, was_sent=False), *self._send_queued(now_ms)]
        self.wake_at_ms = min((each.deadline_ms for each in (*self._in_flight, *self._queued)), default=math.inf)
        if now_ms < self._throttled_until_ms:
            self.wake_at_ms = min(self.wake_at_ms, self._throttled_until_ms)
        return effects

    def lost(self, reason: str) -> list[Effect]:
        """The connection was lost or could not be established."""
        if self.phase is Phase.CLOSED:
            return []
        cause = reason or "the broker closed it"
        if self.phase is Phase.NEGOTIATING:
            cause += f" while versions were negotiated: is it a Kafka listener? {self._protocol_question()}"
        elif self.phase is Phase.READY and not reason and self._awaits_first_response():
            cause += f" before its first response: {self._protocol_question()}"
        return self._end(f"lost the connection to {self._peer}: {cause}")

    def _awaits_first_response(self) -> bool:
        return bool(self._in_flight) and self._in_flight[0].correlation_id == FIRST_CORRELATION_ID

    def _protocol_question(self) -> str:
        """Ask about the most likely cause of a connection that is closed at once."""
        protocol = self._settings.security.protocol
        needed = "authentication (SASL)" if protocol.needs_tls else "TLS" if protocol.needs_sasl else "TLS or passwords"
        return f"does it require {needed}, and not security.protocol={protocol.name}?"

    # Requests

    @property
    def next_ticket(self) -> int | None:
        """The ticket of the next response; None for internal requests, or if none is in flight."""
        return self._in_flight[0].ticket if self._in_flight else None

    @property
    def is_idle(self) -> bool:
        return not self._queued and not self._in_flight

    def version_for(self, api_key: int, version_at_most: int | None = None, version_at_least: int = 0) -> int:
        """Return the highest version that both sides support; `UnsupportedVersion` if there is none."""
        key = api_key, version_at_most, version_at_least
        version = self._negotiated.get(key)
        if version is None:
            version = self._negotiated[key] = self._find_version(*key)
        return version

    def _find_version(self, api_key: int, version_at_most: int | None, version_at_least: int) -> int:
        ours, theirs = codec.versions(api_key), self.versions.get(api_key)
        if ours is None:
            raise UnsupportedVersion(f"this client does not support {codec.api_name(api_key)}")
        if theirs is None:
            name = codec.api_name(api_key)
            hint = "; is it a controller? Connect to a broker" if name == "Metadata" else ""  # every broker supports it
            raise UnsupportedVersion(f"{self._peer} does not support {name}{hint}")
        newest = ours[1] if version_at_most is None else min(ours[1], version_at_most)
        oldest = max(ours[0], version_at_least)
        highest = min(newest, theirs[1])
        if highest < max(oldest, theirs[0]):
            supported = f"{self._peer} supports {codec.api_name(api_key)} {theirs[0]}-{theirs[1]}"
            raise UnsupportedVersion(f"{supported}, this request requires {oldest}-{newest}")
        return highest

    # Negotiation

    def _negotiate(self, version: int, now_ms: float) -> list[Effect]:
        request = messages.ApiVersionsRequest(client_software_name="moldau", client_software_version=__version__)
        return self._send_internal(request, version, now_ms)

    def _receive_versions(self, version: int, body: memoryview, now_ms: float) -> list[Effect]:
        # The error code has the same position in every version, and a broker that does not support
        # the version of the request responds in version 0.
        if len(body) < 2:
            return self._break("its response to ApiVersions is too short")
        code = _INT16.unpack_from(body)[0]
        if code == ErrorCode.UNSUPPORTED_VERSION:
            return self._step_down(version, body, now_ms)
        if code != ErrorCode.NONE:
            return self._break(f"it rejected ApiVersions: {error_of(code).message}")
        response = _decode(API_VERSIONS, version, body)
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        self._negotiated.clear()
        self.features = {each.name: each.max_version_level for each in response.finalized_features or ()}
        return self._begin_authentication(now_ms)

    def _step_down(self, version: int, body: memoryview, now_ms: float) -> list[Effect]:
        if version == 0:
            return self._break("it supports no version of ApiVersions")
        try:
            offers = _decode(API_VERSIONS, 0, body).api_keys
        except codec.Malformed:
            offers = ()
        offered = max((each.max_version for each in offers if each.api_key == API_VERSIONS), default=0)
        # Always a lower version, regardless of the broker's offer, so that the negotiation terminates.
        return self._negotiate(max(0, min(offered, version - 1)), now_ms)

    # Authentication

    def _begin_authentication(self, now_ms: float) -> list[Effect]:
        self._authentication = self._authenticate()
        if self._authentication is None:
            return self._become_ready(now_ms)
        self.phase = Phase.AUTHENTICATING
        self._lifetime_ms = 0
        return self._continue_authentication(None, now_ms)

    def _continue_authentication(self, response: Any, now_ms: float) -> list[Effect]:
        assert self._authentication is not None
        self._lifetime_ms = getattr(response, "session_lifetime_ms", 0) or self._lifetime_ms
        try:
            request = self._authentication.send(response)
            if isinstance(request, Derive):
                return [request]
            return self._send_internal(request, self.version_for(request.API_KEY), now_ms)
        except StopIteration:
            lifetime_ms = self._lifetime_ms
            self._renew_at_ms = now_ms + lifetime_ms * RENEWED_AFTER if lifetime_ms > 0 else math.inf
            return self._become_ready(now_ms)
        except KafkaError as error:
            return self._end_with(error)

    def derived(self, result: Any, now_ms: float) -> list[Effect]:
        """The work of `Derive` is done; an exception is its result if it failed."""
        if self.phase is not Phase.AUTHENTICATING:
            return []
        if isinstance(result, Exception):
            return self._end_with(result if isinstance(result, KafkaError) else SaslAuthenticationFailed(str(result)))
        return self._continue_authentication(result, now_ms)

    def _become_ready(self, now_ms: float) -> list[Effect]:
        self.phase = Phase.READY
        return self._send_queued(now_ms)

    # Sending and receiving

    def _send_internal(self, request: Message, version: int, now_ms: float) -> list[Effect]:
        request_timeout_ms = self._settings.request_timeout_ms
        pending = _PendingRequest(None, request, request_timeout_ms, now_ms + request_timeout_ms, version=version)
        self.wake_at_ms = min(self.wake_at_ms, pending.deadline_ms)
        return [self._put_in_flight(pending, now_ms)]

    def _send_queued(self, now_ms: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.phase is not Phase.READY or now_ms < self._throttled_until_ms:
            return effects
        if self._queued and now_ms >= self._renew_at_ms:
            self._renew_at_ms = math.inf
            return self._begin_authentication(now_ms)
        while self._queued and len(self._in_flight) < self._settings.requests_in_flight_max:
            effects.extend(self._send(self._queued.popleft(), now_ms))
        return effects

    def _send(self, pending: _PendingRequest, now_ms: float) -> list[Effect]:
        assert pending.ticket is not None
        try:
            pending.version = self.version_for(
                pending.request.API_KEY, pending.version_at_most, pending.version_at_least
            )
            frame = self._put_in_flight(pending, now_ms)
        except Exception as error:  # a request that cannot be encoded fails alone, not the connection
            return [Fail(pending.ticket, error)]
        if pending.request.API_KEY == PRODUCE and cast("messages.ProduceRequest", pending.request).acks == 0:
            self._in_flight.pop()
            return [frame, Deliver(pending.ticket, None)]
        return [frame]

    def _put_in_flight(self, pending: _PendingRequest, now_ms: float) -> SendFrame:
        pending.deadline_ms = now_ms + pending.timeout_ms
        pending.correlation_id = self._next_correlation_id
        header = framing.RequestHeader(
            pending.request.API_KEY, pending.version, pending.correlation_id, self._settings.client_id
        )
        pieces = framing.frame_request(header, pending.request)
        self._next_correlation_id = (self._next_correlation_id + 1) % CORRELATION_ID_MAX
        self._in_flight.append(pending)
        return SendFrame(pieces)

    def _receive(self, pending: _PendingRequest, frame: memoryview, now_ms: float) -> list[Effect]:
        api_key = pending.request.API_KEY
        _, position = framing.parse_response_header(api_key, pending.version, frame)
        body = frame[position:]
        if self.phase is Phase.NEGOTIATING:
            return self._receive_versions(pending.version, body, now_ms)
        response = _decode(api_key, pending.version, body)
        if pending.ticket is None:
            return self._continue_authentication(response, now_ms)
        self._apply_throttle(response, now_ms)
        return [Deliver(pending.ticket, response), *self._send_queued(now_ms)]

    def _apply_throttle(self, response: Any, now_ms: float) -> None:
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttled_until_ms = now_ms + throttle_ms
            self.wake_at_ms = min(self.wake_at_ms, self._throttled_until_ms)

    # Closing

    def _time_out_requests(self, now_ms: float) -> list[Effect]:
        stuck, waiting = list(self._in_flight), list(self._queued)
        late = [each for each in stuck if each.deadline_ms <= now_ms]
        self._in_flight = deque(each for each in stuck if each.deadline_ms > now_ms)
        self._queued = deque(each for each in waiting if each.deadline_ms > now_ms)
        effects = self._fail_timed_out(late, was_sent=True)
        effects += self._fail_timed_out([each for each in waiting if each.deadline_ms <= now_ms], was_sent=False)
        name = codec.api_name(late[0].request.API_KEY)
        return [*effects, *self._end(f"{self._peer} did not respond to {name} in time; connection closed")]

    def _fail_timed_out(self, requests: list[_PendingRequest], *, was_sent: bool) -> list[Effect]:
        return [
            Fail(each.ticket, ResponseTimeout(self._timeout_message(each, was_sent), was_sent=was_sent))
            for each in requests
            if each.ticket is not None
        ]

    def _timeout_message(self, pending: _PendingRequest, was_sent: bool) -> str:
        name = codec.api_name(pending.request.API_KEY)
        if was_sent:
            return f"{self._peer} did not respond to {name} in time"
        return f"{name} to {self._peer} timed out before it was sent (connection {self.phase.value})"

    def _break(self, why: str) -> list[Effect]:
        return self._end(f"closed the connection to {self._peer}: {why}")

    def _end(self, reason: str) -> list[Effect]:
        unfinished = [(each, True) for each in self._in_flight] + [(each, False) for each in self._queued]
        fails = [
            Fail(each.ticket, ConnectionLost(reason, was_sent=was_sent))
            for each, was_sent in unfinished
            if each.ticket is not None
        ]
        return self._finish([*fails], reason)

    def _end_with(self, error: KafkaError) -> list[Effect]:
        reason = f"{self._peer} rejected the authentication: {error.message}"
        sent = [each.ticket for each in self._in_flight if each.ticket is not None]
        fails = [Fail(ticket, ConnectionLost(reason, was_sent=True)) for ticket in sent]
        fails += [Fail(each.ticket, error) for each in self._queued if each.ticket is not None]
        return self._finish([*fails], reason)

    def _finish(self, effects: list[Effect], reason: str) -> list[Effect]:
        self._end_reason = reason
        self._in_flight.clear()
        self._queued.clear()
        self.phase = Phase.CLOSED
        self.wake_at_ms = math.inf
        if self._authentication is not None:
            self._authentication.close()
        return [*effects, Close(reason)]


def _decode(api_key: int, version: int, body: memoryview) -> Any:
    """Ignore trailing bytes, as other clients do: some brokers send an extra tag section."""
    response, _ = codec.response_decoder(api_key, version)(body, 0)
    return response
