"""The gate of a SASL connection: until it is authenticated, only the requests that authenticate it are served.

    NEW ──ApiVersions──> VERSIONS_SENT
     └────SaslHandshake────┴──> EXCHANGE ──last message──> OPEN ──lifetime over──> EXPIRED
                                   │  ^                      └──SaslHandshake──┐      │
                                   │  └────────────── again, same principal ───┴──────┘
                                   └──failure──> FAILED: the response follows after a delay, then the connection closes

A connection whose gate is open has no cost: `ServedConnection` asks the gate only for frames that no fast path took,
and fast paths exist only while the gate is open. After SaslHandshake 0 the messages of the mechanism are bare frames;
after version 1 they are SaslAuthenticate requests.

A failure has the same response and delay for every cause that concerns the credentials.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from moldau.broker.authentication.mechanisms import ListenerMechanisms, Mechanisms
from moldau.broker.runtime.meters import AuthenticationMeter
from moldau.machines.access.exchange import (
    Authenticated,
    AuthenticationFailed,
    Challenge,
    Derive,
    ServerExchange,
    Step,
    principal_of,
)
from moldau.model.errors import ErrorCode
from moldau.model.ports import Clock, Connection, Executor, Piece
from moldau.wire.codec import Malformed, decode_request
from moldau.wire.framing import LENGTH_BYTES, RequestHeader, frame_response, parse_request_header
from moldau.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

API_VERSIONS: Final = 18
API_VERSIONS_NEWEST: Final = 4
SASL_HANDSHAKE: Final = SaslHandshakeRequest.API_KEY
SASL_AUTHENTICATE: Final = SaslAuthenticateRequest.API_KEY
HANDSHAKE_VERSIONS: Final = (0, 1)
AUTHENTICATE_VERSIONS: Final = (0, 2)
FRAMED_FROM: Final = 1  # version of SaslHandshake
LIFETIME_FROM: Final = 1  # version of SaslAuthenticate
REAUTHENTICATION_MS_MIN: Final = 1000.0  # between two of them, as in Kafka


class _State(Enum):
    NEW = "before SaslHandshake"
    VERSIONS_SENT = "before SaslHandshake, after ApiVersions"
    EXCHANGE = "during authentication"
    OPEN = "authenticated"
    EXPIRED = "after the session expired"
    FAILED = "after a failure"


class Responses(Protocol):
    """The responses of the connection, in order."""

    def send(self, pieces: list[Piece]) -> None: ...


class GatedConnection(Protocol):
    """The connection behind the gate."""

    principal: str
    is_token_authenticated: bool

    @property
    def responses(self) -> Responses: ...

    @property
    def transport(self) -> Connection: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...

    def close_with_error(self, kind: str, reason: str) -> None: ...

    def suspend_fast_paths(self) -> None: ...

    def restore_fast_paths(self) -> None: ...

    def was_authenticated(self) -> None:
        """Called once: the connection no longer counts as unauthenticated."""
        ...


@dataclass(frozen=True, slots=True)
class GateHost:
    """State that all gates of a listener share."""

    mechanisms: ListenerMechanisms
    clock: Clock
    executor: Executor
    meter: AuthenticationMeter


class SaslGate:
    """See the module. One for each connection to a SASL listener."""

    __slots__ = (
        "_authenticate_version",
        "_began_ms",
        "_connection",
        "_correlation_id",
        "_deriving",
        "_exchange",
        "_frame_bytes_max",
        "_host",
        "_is_framed",
        "_is_known",
        "_mechanism",
        "_mechanisms",
        "_state",
        "_timer",
        "is_open",
        "reauthenticated_ms",
    )

    def __init__(self, connection: GatedConnection, host: GateHost) -> None:
        self.is_open = False
        self.reauthenticated_ms: float | None = None
        self._connection = connection
        self._host = host
        self._mechanisms: Mechanisms = host.mechanisms.current
        self._state = _State.NEW
        self._is_known = False  # whether the connection was authenticated before, so that its principal is fixed
        self._mechanism = ""
        self._exchange: ServerExchange | None = None
        self._is_framed = False
        self._correlation_id = 0
        self._authenticate_version = 0
        self._frame_bytes_max = 0
        self._began_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._deriving: asyncio.Task[None] | None = None

    # -- the connection

    def connected(self) -> None:
        """Limit the size of frames until the gate opens."""
        transport = self._connection.transport
        self._frame_bytes_max = transport.frame_bytes_max
        transport.frame_bytes_max = min(self._frame_bytes_max, self._mechanisms.settings.sasl_server_max_receive_size)
        self.restart_clock()

    def restart_clock(self) -> None:
        """The time to authenticate begins when the connection is read for the first time."""
        self._began_ms = self._host.clock.monotonic_ms()

    def is_overdue(self, now_ms: float) -> bool:
        """Whether the peer has had its time to authenticate."""
        is_pending = not self.is_open and self._state is not _State.EXPIRED
        return is_pending and now_ms - self._began_ms > self._mechanisms.settings.authentication_timeout_ms

    def disconnected(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._deriving is not None:
            self._deriving.cancel()
        self._exchange = None

    # -- requests while the gate is closed

    def handle(self, frame: memoryview) -> bool:
        """Handle a frame; False if it is the ApiVersions request that is always allowed."""
        match self._state:
            case _State.FAILED:
                return True
            case _State.EXCHANGE if not self._is_framed:
                self._advance(bytes(frame))
                return True
        try:
            header, position = parse_request_header(frame)
            return self._handle(header, frame, position)
        except Malformed as error:
            self._reject(f"malformed request {self._state.value}: {error}")
            return True

    def _handle(self, header: RequestHeader, frame: memoryview, position: int) -> bool:
        if header.api_key == API_VERSIONS and self._state is _State.NEW:
            # The response to a later version names those that are known, and the client sends it again.
            if header.api_version <= API_VERSIONS_NEWEST:
                self._state = _State.VERSIONS_SENT
            return False
        if self._state is _State.EXPIRED and header.api_key != SASL_HANDSHAKE:
            self._host.meter.expired += 1
            self._reject("its session has expired: it must authenticate again")
            return True
        is_exchange = self._state is _State.EXCHANGE
        expected, versions = (
            (SASL_AUTHENTICATE, AUTHENTICATE_VERSIONS) if is_exchange else (SASL_HANDSHAKE, HANDSHAKE_VERSIONS)
        )
        if header.api_key != expected:
            self._reject_request(header)
        elif not versions[0] <= header.api_version <= versions[1]:
            self._reject(f"API {header.api_key} version {header.api_version} is not supported")
        elif is_exchange:
            self._correlation_id, self._authenticate_version = header.correlation_id, header.api_version
            request = decode_request(header.api_key, header.api_version, frame[position:])
            self._advance(bytes(request.auth_bytes))
        else:
            request = decode_request(header.api_key, header.api_version, frame[position:])
            self._begin(header, request)
        return True

    def _begin(self, header: RequestHeader, request: SaslHandshakeRequest) -> None:
        response = self._choose(request.mechanism, header.api_version)
        pieces = frame_response(SASL_HANDSHAKE, header.api_version, header.correlation_id, response)
        self._connection.responses.send(pieces)
        if response.error_code:
            self._fail(f"mechanism {request.mechanism[:40]!r} is not offered here", None)

    def _choose(self, name: str, version: int) -> SaslHandshakeResponse:
        """Start the exchange; a session that is renewed keeps its mechanism."""
        offered = (self._mechanism,) if self._is_known else self._mechanisms.names
        exchange = self._mechanisms.start(name) if name in offered else None
        if exchange is None:
            return SaslHandshakeResponse(error_code=int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), mechanisms=list(offered))
        self._state, self._exchange, self._mechanism = _State.EXCHANGE, exchange, name
        self._is_framed = version >= FRAMED_FROM
        return SaslHandshakeResponse(mechanisms=list(self._mechanisms.names))

    # -- the exchange

    def _advance(self, message: bytes) -> None:
        if self._deriving is not None or self._exchange is None:
            self._reject("it sent a message of the mechanism before the response to the last one")
            return
        try:
            self._take(self._exchange.step(message))
        except AuthenticationFailed as error:
            self._fail_credentials(error)

    def _take(self, step: Step) -> None:
        match step:
            case Challenge(message):
                self._reply(message, 0)
            case Derive():
                self._connection.pause()
                self._deriving = asyncio.get_running_loop().create_task(self._derive(step))
            case Authenticated():
                self._succeed(step)

    async def _derive(self, step: Derive) -> None:
        derived = await self._host.executor.run(step.work, *step.arguments)
        exchange, self._deriving = self._exchange, None
        if exchange is None:
            return
        try:
            self._take(exchange.resume(derived))
        except AuthenticationFailed as error:
            self._fail_credentials(error)
        self._connection.resume()

    def _succeed(self, outcome: Authenticated) -> None:
        principal = principal_of(outcome.name)
        if self._is_known and principal != self._connection.principal:
            before, after = (each.replace(":", ".", 1) for each in (self._connection.principal, principal))
            text = f"Cannot change principals during re-authentication from {before}: {after}"
            self._fail("the principal changed", text)
            return
        lifetime_ms = self._mechanisms.session_ms(self._mechanism, outcome.expires_at_ms)
        self._reply(outcome.message, 0 if lifetime_ms is None else int(lifetime_ms))
        self._connection.principal = principal
        self._connection.is_token_authenticated = outcome.is_by_token
        self._open(lifetime_ms)

    def _open(self, lifetime_ms: float | None) -> None:
        meter, connection = self._host.meter, self._connection
        self._state, self._exchange, self.is_open = _State.OPEN, None, True
        if self._is_known:
            meter.reauthentications += 1
            connection.restore_fast_paths()
        else:
            meter.successes += 1
            connection.transport.frame_bytes_max = self._frame_bytes_max
            connection.was_authenticated()
        self._is_known = True
        self._set_timer(lifetime_ms)

    def _set_timer(self, lifetime_ms: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if lifetime_ms is not None:
            self._timer = asyncio.get_running_loop().call_later(lifetime_ms / 1000, self._expire)

    def _expire(self) -> None:
        """From now on, the gate sees every request of the connection; the next one must begin a re-authentication."""
        self._timer = None
        if self._state is _State.OPEN:
            self._state, self.is_open = _State.EXPIRED, False
            self._connection.suspend_fast_paths()

    # -- re-authentication

    def begin_again(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse | None:
        """SaslHandshake on an authenticated connection (KIP-368); None if it must not authenticate again now.

        As in Kafka: only where sessions have a lifetime, and at most once a second.
        """
        now_ms = self._host.clock.monotonic_ms()
        is_too_early = (
            self.reauthenticated_ms is not None and now_ms - self.reauthenticated_ms < REAUTHENTICATION_MS_MIN
        )
        if self._timer is None or is_too_early:
            return None
        self.reauthenticated_ms = now_ms
        response = self._choose(request.mechanism, version)
        self.is_open = False
        self.restart_clock()
        self._connection.suspend_fast_paths()
        if response.error_code:
            self._fail("the mechanism changed", None)
        return response

    # -- responses and failures

    def _reply(self, message: bytes, lifetime_ms: int) -> None:
        if not self._is_framed:
            self._connection.responses.send([len(message).to_bytes(LENGTH_BYTES, "big") + message])
            return
        response = SaslAuthenticateResponse(auth_bytes=message)
        if self._authenticate_version >= LIFETIME_FROM:
            response.session_lifetime_ms = lifetime_ms
        self._connection.responses.send(self._framed(response))

    def _framed(self, response: SaslAuthenticateResponse) -> list[Piece]:
        return frame_response(SASL_AUTHENTICATE, self._authenticate_version, self._correlation_id, response)

    def _fail_credentials(self, error: AuthenticationFailed) -> None:
        again = "re-authentication" if self._is_known else "authentication"
        text = f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._mechanism}"
        self._fail(f"invalid credentials ({self._mechanism})", str(error) or text)

    def _fail(self, reason: str, text: str | None) -> None:
        """Send the text, if any, and close: both after the delay."""
        pieces: list[Piece] = []
        if text is not None and self._is_framed:
            code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
            pieces = self._framed(SaslAuthenticateResponse(error_code=code, error_message=text))
        self._close_later(reason, pieces)

    def _reject_request(self, header: RequestHeader) -> None:
        """Reject a request that is not allowed in this state; SaslHandshake and SaslAuthenticate have responses."""
        code = int(ErrorCode.ILLEGAL_SASL_STATE)
        pieces: list[Piece] = []
        version = header.api_version
        response: Any = None
        if header.api_key == SASL_HANDSHAKE and version in range(HANDSHAKE_VERSIONS[1] + 1):
            response = SaslHandshakeResponse(error_code=code)
        elif header.api_key == SASL_AUTHENTICATE and version in range(AUTHENTICATE_VERSIONS[1] + 1):
            response = SaslAuthenticateResponse(
                error_code=code, error_message=f"SaslAuthenticate is not expected {self._state.value}"
            )
        if response is not None:
            pieces = frame_response(header.api_key, version, header.correlation_id, response)
        self._close_later(f"API {header.api_key} is not allowed {self._state.value}", pieces)

    def _close_later(self, reason: str, pieces: list[Piece]) -> None:
        settings = self._mechanisms.settings
        self._host.meter.failures += 1
        self._state, self._exchange, self.is_open = _State.FAILED, None, False
        self._connection.pause()
        self._set_timer(None)
        delay_s = settings.connection_failed_authentication_delay_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._close, reason, pieces)

    def _close(self, reason: str, pieces: list[Piece]) -> None:
        self._timer = None
        if pieces:
            self._connection.responses.send(pieces)
        self._connection.close_with_error("authentication", f"authentication failed: {reason}")

    def _reject(self, reason: str) -> None:
        """Close at once: the peer does not speak the protocol, or had its time."""
        if not self._is_known:
            self._host.meter.failures += 1
        self._state, self._exchange, self.is_open = _State.FAILED, None, False
        self._connection.close_with_error("authentication", reason)
