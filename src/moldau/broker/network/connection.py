"""One client connection: frames become requests, and responses are sent in request order.

    frame ──> fast path of its API, if it repeats an earlier request ──┐
      └─────> header ──> router ──> decoder ──> handler ──> encoder ───┴──> response queue ──> socket

The connection starts a handler at once, as a coroutine in the turn in which the frame arrived. So requests of a
connection *start* in order, and a request that does not wait (nearly every Produce and most Fetches) needs no task. A
handler that waits resumes later, in a task or without one (`taskless_handler`), while later requests start; their
responses queue behind its own.

This package knows frames, queues and the handler table (`requests.router.Api`), and nothing of a particular API.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.access import ANONYMOUS
from moldau.broker.network.authentication import SaslGate
from moldau.broker.network.host import NetworkHost
from moldau.broker.network.response_queue import PendingResponse, ResponseQueue
from moldau.broker.network.taskless_handler import TasklessHandler, resume
from moldau.broker.requests.context import AllowedTopics, CloseConnection, RequestContext
from moldau.broker.runtime.record_sampler import RecordSampler
from moldau.model.errors import InvalidConfig, KafkaError, StorageFailed
from moldau.model.ports import Connection, Piece
from moldau.wire.codec import Malformed
from moldau.wire.framing import RequestHeader, frame_response, parse_request_header
from moldau.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from moldau.broker.network.authentication import GateHost
    from moldau.broker.network.connection_limits import ConnectionLimits
    from moldau.broker.requests.fast_path import FastPath, RequestQuota
    from moldau.broker.requests.router import Api, Router

FRAME_MS_MAX: Final = 60_000.0  # from first byte to last: a peer that sends slowly occupies a buffer
DELAY_TOLERANT_MIN: Final = (
    4  # after this many requests in a row that tolerate delay, reads of the connection are deferred
)
CLOSING_MS_MAX: Final = 30_000.0  # for the peer to read what was sent before the connection closes


class ServedConnection:
    """The broker's end of a client connection."""

    __slots__ = (
        "_broker",
        "_closing_ms",
        "_delay_tolerant_in_row",
        "_fast_path",
        "_fast_paths",
        "_frame_seen_ms",
        "_limits",
        "_listener",
        "_principal_of",
        "_router",
        "_suspended",
        "_transport",
        "_waiting",
        "allowed_topics",
        "client_software",
        "gate",
        "has_requested_metadata",
        "is_token_authenticated",
        "last_active_ms",
        "peer",
        "principal",
        "quota",
        "record_sampler",
        "responses",
        "when_lost",
    )

    def __init__(
        self,
        broker: NetworkHost,
        router: "Router",
        listener: str,
        limits: "ConnectionLimits",
        sasl: "GateHost | None" = None,
        principal_of: Callable[[str | None], str] | None = None,
    ) -> None:
        """`sasl` if the listener requires authentication by SASL; `principal_of` maps the subject of a client
        certificate to the principal where certificates identify clients."""
        self._broker = broker
        self._listener = listener
        self._router = router
        self._limits = limits
        self._principal_of = principal_of
        self.responses = ResponseQueue()
        self._fast_paths: dict[int, FastPath] = {}  # by API key, of APIs that were used on this connection
        self._fast_path: FastPath | None = None  # the last one, which may hold back responses of this turn
        self._delay_tolerant_in_row = 0
        self._waiting: dict[asyncio.Task[None] | TasklessHandler, None] = {}  # handlers, in the order they started
        self._transport: Connection | None = None
        self._frame_seen_ms: tuple[float, float] | None = (
            None  # last_active_ms, and when a partial frame was first seen
        )
        self._closing_ms: float | None = None
        self.gate = SaslGate(self, sasl) if sasl is not None else None
        self._suspended: dict[int, FastPath] = {}  # the fast paths, while the gate is closed
        self.is_token_authenticated = False
        self.principal = ANONYMOUS  # does not change once a fast path has cached a request
        self.quota: RequestQuota | None = None  # None: unlimited
        self.when_lost: Callable[[], None] | None = None  # called when the connection closes
        self.peer = ""
        self.last_active_ms = 0.0
        self.has_requested_metadata = False
        self.client_software = ("", "")  # name and version, from ApiVersions
        self.allowed_topics = AllowedTopics()
        self.record_sampler: RecordSampler | None = None  # of a connection that produces

    # -- called by the transport

    def connected(self, transport: Connection) -> None:
        self._transport = self.responses.connection = transport
        transport.on_turn_end = self._turn_ended
        self.peer = transport.peer.host
        self.last_active_ms = self._broker.clock.monotonic_ms()
        if self.gate is not None:
            self.gate.connected()
        reason = self._limits.admit(self) or self._identify(transport)
        if reason:
            self._broker.limited_logger.write("rejected", f"Rejected a connection from {transport.peer}: {reason}")
            transport.abort()

    def _identify(self, transport: Connection) -> str | None:
        """Derive the principal from the client's certificate. Returns the reason to reject the connection, if any."""
        try:
            if self._principal_of is not None:
                self.principal = self._principal_of(transport.peer_subject)
        except InvalidConfig as error:
            return str(error)
        return None

    def frame_received(self, frame: memoryview) -> None:
        fast_paths = self._fast_paths
        if fast_paths:
            # The low byte of the API key finds the fast path, which compares or parses the whole header.
            fast_path = fast_paths.get(frame[1]) if len(frame) > 1 else None
            quota = self.quota
            if fast_path is not self._fast_path:
                self._switch_to(fast_path)
            if fast_path is not None and (quota is None or quota.has_room(frame)) and fast_path.try_handle(frame):
                if quota is not None:
                    quota.charge(frame)
                if fast_path.tolerates_delay:
                    self._count_delay_tolerant()
                return
            self._leave_fast_path()
        started_ms = self.last_active_ms = self._broker.clock.monotonic_ms()
        gate = self.gate
        if gate is not None and not gate.is_open and gate.handle(frame):
            return
        try:
            header, position = parse_request_header(frame)
        except Malformed as error:
            self.close_with_error("malformed", f"malformed request header: {error}")
            return
        api = self._router.api(header.api_key)
        if api is None or not api.oldest <= header.api_version <= api.newest:
            self._reject_version(header, api)
            return
        try:
            # Bytes behind the request are ignored, as Kafka does: librdkafka's Metadata request has three more.
            request, _ = api.decoder(header.api_version)(frame, position)
        except Malformed as error:
            self.close_with_error("malformed", f"malformed {api.name} request (version {header.api_version}): {error}")
            return
        self._open_coalescer(api)
        context = self.context(header, started_ms)
        if self.quota is not None:
            context.usage = self.quota.begin(self.principal, header.client_id, len(frame))
        response = self._start(api, request, context)
        if api.fast_path is not None:
            self._learn(api, frame, request, context, response)

    def _switch_to(self, fast_path: "FastPath | None") -> None:
        """Send the responses that the last fast path held back, before a later request is handled."""
        if self._fast_path is not None:
            self._fast_path.flush()
        self._fast_path = fast_path

    def _leave_fast_path(self) -> None:
        """A handler takes the request."""
        self._switch_to(None)
        if self._delay_tolerant_in_row:
            self._delay_tolerant_in_row = 0
            self.transport.may_defer_reads = False

    def _count_delay_tolerant(self) -> None:
        """Let the transport defer reads of a connection that has only such requests."""
        self._delay_tolerant_in_row += 1
        if self._delay_tolerant_in_row == DELAY_TOLERANT_MIN:
            self.transport.may_defer_reads = all(each.tolerates_delay for each in self._fast_paths.values())

    def _learn(
        self, api: "Api", frame: memoryview, request: Any, context: RequestContext[NetworkHost], response: Any
    ) -> None:
        """Let the fast path of this API cache the request; create it when the API is first used."""
        fast_path = self._fast_paths.get(api.key)
        if fast_path is None:
            assert api.fast_path is not None
            fast_path = api.fast_path(self, request, context, api.meter)
            if fast_path is None:
                return
            self._fast_paths[api.key] = fast_path
        fast_path.learn(frame, request, context, response)

    def _open_coalescer(self, api: "Api") -> None:
        """Coalesce writes of requests that allow it; any other request finds all batches in the logs."""
        coalescer = self._broker.write_coalescer
        if api.coalesces_writes:
            coalescer.is_open = self.transport.has_more_bytes or not coalescer.is_empty
        else:
            coalescer.close()

    def _turn_ended(self) -> None:
        """Write coalesced batches before their acknowledgements are sent."""
        coalescer = self._broker.write_coalescer
        coalescer.is_open = False
        if not coalescer.is_empty:
            coalescer.more_follows = self.transport.is_in_frame
            failure = coalescer.end()
            coalescer.more_follows = False
            if failure is not None:
                self._broker.limited_logger.write("unwritten", f"Closing the connection from {self.peer}: {failure}")
                self.transport.abort()
        if self._fast_path is not None:
            self._fast_path.flush()

    def drained(self) -> None:
        self.responses.pause_if_full()

    def disconnected(self, reason: str) -> None:
        if reason:
            kind = " ".join(word for word in reason.split()[:3] if word.isalpha())  # numbers may come from the peer
            self._broker.limited_logger.write(kind, f"Connection from {self.peer} closed: {reason}", logging.INFO)
        self._limits.remove(self)
        if self.when_lost is not None:
            self.when_lost()
        if self.gate is not None:
            self.gate.disconnected()
        for fast_path in (*self._fast_paths.values(), *self._suspended.values()):
            fast_path.close()
        waiting, self._waiting = self._waiting, {}
        for handler in waiting:
            handler.cancel()
        self.responses.clear()

    # -- authentication

    def reauthenticate(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse | None:
        """Begin a re-authentication; None if this connection must not authenticate again now."""
        return None if self.gate is None else self.gate.begin_again(request, version)

    def was_authenticated(self) -> None:
        """The gate opened for the first time."""
        self._limits.authenticated(self)

    def suspend_fast_paths(self) -> None:
        """Show every request to the gate."""
        self._leave_fast_path()
        self._suspended, self._fast_paths = {**self._suspended, **self._fast_paths}, {}

    def restore_fast_paths(self) -> None:
        """The gate is open again, for the same principal."""
        self._suspended, self._fast_paths = {}, self._suspended

    # -- one request

    @property
    def transport(self) -> Connection:
        assert self._transport is not None
        return self._transport

    @property
    def peer_port(self) -> int:
        return self.transport.peer.port

    @property
    def listener(self) -> str:
        """The name of the listener that accepted it."""
        return self._listener

    def context(self, header: RequestHeader, started_ms: float) -> RequestContext[NetworkHost]:
        return RequestContext(self._broker, self._listener, self.peer, self.principal, header, started_ms, self)

    def _start(self, api: "Api", request: Any, context: RequestContext[NetworkHost]) -> Any:
        """Start the handler. Returns its response if it did not wait; that response is sent then."""
        coroutine = api.handle(request, context)
        if context.usage is not None:
            coroutine = context.usage.timed(coroutine)
        try:
            awaited = coroutine.send(None)
        except StopIteration as stop:
            response = stop.value
        except KafkaError as error:
            response = api.error_response(request, error, context.api_version)
        except CloseConnection as order:
            self.close_with_error("handler", str(order))
            return None
        except Exception as error:
            self._respond_to_failure(api, request, context, error, None)
            return None
        else:
            self._resume_later(api, request, context, coroutine, awaited)
            return None
        self._finish(api, context, response, None)
        return response

    def _resume_later(
        self,
        api: "Api",
        request: Any,
        context: RequestContext[NetworkHost],
        coroutine: Coroutine[Any, Any, Any],
        awaited: object,
    ) -> None:
        pending = self.responses.reserve(context.weight)
        if not api.needs_task:

            def on_end(response: Any, error: Exception | None) -> None:
                self._waiting.pop(handler, None)
                self._end(api, request, context, pending, response, error)

            handler = TasklessHandler(coroutine, awaited, on_end)
            self._waiting[handler] = None
            return
        rest = resume(coroutine, awaited)
        task = asyncio.get_running_loop().create_task(self._wait(api, request, context, rest, pending))
        self._waiting[task] = None
        task.add_done_callback(lambda done: self._waiting.pop(done, None))

    async def _wait(
        self, api: "Api", request: Any, context: RequestContext[NetworkHost], rest: Any, pending: PendingResponse
    ) -> None:
        try:
            response, failure = await rest, None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            response, failure = None, error
        self._end(api, request, context, pending, response, failure)

    def _end(
        self,
        api: "Api",
        request: Any,
        context: RequestContext[NetworkHost],
        pending: PendingResponse,
        response: Any,
        error: Exception | None,
    ) -> None:
        """A handler that has waited ends."""
        match error:
            case None:
                self._finish(api, context, response, pending)
            case KafkaError():
                self._finish(api, context, api.error_response(request, error, context.api_version), pending)
            case CloseConnection():
                self.close_with_error("handler", str(error))
            case _:
                self._respond_to_failure(api, request, context, error, pending)

    def _finish(
        self, api: "Api", context: RequestContext[NetworkHost], response: Any, pending: PendingResponse | None
    ) -> None:
        if context.usage is not None:
            context.throttle_ms = max(context.throttle_ms, context.usage.finish(api.key, response))
        pieces: list[Piece] = []
        if response is not None:
            try:
                pieces = frame_response(api.key, context.api_version, context.correlation_id, response)
            except Exception as error:
                self._report_bug(api, context, error)
                self.close_with_error("handler", f"the {api.name} response could not be encoded")
                return
        api.meter.finished(self._broker.clock.monotonic_ms() - context.started_ms)
        if pending is None:
            self.responses.send(pieces)
        else:
            pending.send(pieces)
        if context.throttle_ms:
            self._limits.muted.mute(self.responses, context.throttle_ms)

    # -- errors

    def _reject_version(self, header: RequestHeader, api: "Api | None") -> None:
        if api is not None and api.unsupported_version_response is not None:
            self.responses.send(
                frame_response(header.api_key, 0, header.correlation_id, api.unsupported_version_response())
            )
            return
        self.close_with_error("unserved", f"API {header.api_key} version {header.api_version} is not supported")

    def _respond_to_failure(
        self,
        api: "Api",
        request: Any,
        context: RequestContext[NetworkHost],
        error: Exception,
        pending: PendingResponse | None,
    ) -> None:
        """A disk error has an error code of its own; anything else is a bug."""
        rejection: KafkaError
        if isinstance(error, OSError):
            api.meter.errors += 1
            self._log_disk_error(f"{api.name} request from {self.peer}", error)
            rejection = StorageFailed(f"The disk failed: {error.strerror}.")
        else:
            self._report_bug(api, context, error)
            rejection = KafkaError("The broker failed on this request; see its log.")
        self._finish(api, context, api.error_response(request, rejection, context.api_version), pending)

    def _log_disk_error(self, what: str, error: OSError) -> None:
        self._broker.limited_logger.write("disk", f"{what} failed: {error}", logging.ERROR)

    def _report_bug(self, api: "Api", context: RequestContext[NetworkHost], error: Exception) -> None:
        api.meter.errors += 1
        self._broker.report_bug(f"{api.name} version {context.api_version} from {self.peer}", error)

    def fail(self, what: str, error: Exception) -> None:
        """Log an error that no response can carry, and close the connection."""
        if isinstance(error, OSError):
            self._log_disk_error(f"{what} from {self.peer}", error)
        else:
            self._broker.report_bug(f"{what} from {self.peer}", error)
        self.close_with_error("handler", f"{what} failed")

    def close_with_error(self, kind: str, reason: str) -> None:
        """Close because the peer violates the protocol, or because a handler cannot respond."""
        where = self._transport.peer if self._transport else self.peer
        self._broker.limited_logger.write(kind, f"Closing the connection from {where} ({self.principal}): {reason}")
        self.close()

    def close(self) -> None:
        if self._closing_ms is None:
            self._closing_ms = self._broker.clock.monotonic_ms()
        self.transport.close()

    # -- called by the connection limits

    def close_later(self, delay_ms: float) -> None:
        """Close a connection that exceeds the rate of its address, after a delay in which it is not read."""
        self._broker.limited_logger.write(
            "connection rate", f"Closing a connection from {self.peer}: too many new connections from this address"
        )
        asyncio.get_running_loop().call_later(delay_ms / 1000, self.transport.abort)

    def check_deadlines(self, now_ms: float, idle_ms: int) -> None:
        """Close the connection if it is idle, or too slow, for too long. Called every few seconds."""
        if self._closing_ms is not None:
            if now_ms - self._closing_ms > CLOSING_MS_MAX:
                self.transport.abort()
        elif self.gate is not None and self.gate.is_overdue(now_ms):
            self.close_with_error("authentication", "it did not authenticate in time")
        elif self._is_stuck_in_frame(now_ms):
            self.close_with_error("slow", f"no complete request within {FRAME_MS_MAX / 1000:.0f} seconds")
        elif 0 <= idle_ms < now_ms - self.last_active_ms and not self.responses:
            if self.transport.queued_bytes:
                self.close_with_error("slow", "the peer does not read its responses")
            self.close()

    def _is_stuck_in_frame(self, now_ms: float) -> bool:
        if not self.transport.is_in_frame:
            self._frame_seen_ms = None
        elif self._frame_seen_ms is None or self._frame_seen_ms[0] != self.last_active_ms:
            self._frame_seen_ms = self.last_active_ms, now_ms
        else:
            return now_ms - self._frame_seen_ms[1] > FRAME_MS_MAX
        return False

    def pause(self) -> None:
        """Read nothing until `resume`."""
        self.responses.pause()

    def resume(self) -> None:
        """Read again. The time to authenticate starts with the first frame that can be read."""
        self.responses.pause_if_full()
