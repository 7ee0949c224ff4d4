"""One client's connection: its frames become requests, and answers go back in the order the requests came.

A handler is a coroutine that is started at once, in the turn its frame arrived: so requests of a connection *begin* in
order, and one that does not wait (nearly every produce and most fetches) costs no task. One that waits goes on as a
task while later requests begin; its answer holds back theirs.
"""

import asyncio
import logging
import types
from collections import deque
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.context import ANONYMOUS, CloseConnection, RequestContext
from moldau.model.errors import KafkaError
from moldau.model.ports import Connection, Piece
from moldau.model.units import MiB
from moldau.wire.codec import Malformed
from moldau.wire.framing import RequestHeader, frame_response, parse_request_header

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.network.gate import Gate
    from moldau.broker.router import Api

logger = logging.getLogger(__name__)

REQUESTS_IN_FLIGHT_MAX: Final = 128
QUEUED_BYTES_MAX: Final = 64 * MiB  # beyond this, a peer that does not read is not listened to either


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, Any], waits_for: object) -> Generator[Any, Any, Any]:
    """Goes on with a handler that was started without a task and now waits for something."""
    while True:
        try:
            try:
                came = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(came)
        except StopIteration as stop:
            return stop.value


class _Reply:
    """The place of one answer in the order of answers."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[Piece] | None = None) -> None:
        self.pieces = pieces


class ServedConnection:
    """The broker's end of a client's connection."""

    __slots__ = (
        "_broker",
        "_connection",
        "_gate",
        "_is_held",
        "_listener",
        "_replies",
        "_tasks",
        "_unmute",
        "last_active_ms",
        "peer",
        "principal",
    )

    def __init__(self, broker: "Broker", listener: str, gate: "Gate") -> None:
        self._broker = broker
        self._listener = listener
        self._gate = gate
        self._replies: deque[_Reply] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: Connection | None = None
        self._is_held = False
        self._unmute: asyncio.TimerHandle | None = None
        self.principal = ANONYMOUS
        self.peer = ""
        self.last_active_ms = 0.0

    # -- the endpoint's side

    def connected(self, connection: Connection) -> None:
        self._connection = connection
        self.peer = connection.peer.host
        self.last_active_ms = self._broker.clock.monotonic_ms()
        complaint = self._gate.admit(self)
        if complaint:
            logger.warning("Refused a connection from %s: %s", connection.peer, complaint)
            connection.abort()

    def frame_received(self, frame: memoryview) -> None:
        started_ms = self.last_active_ms = self._broker.clock.monotonic_ms()
        try:
            header, position = parse_request_header(frame)
        except Malformed as error:
            self.give_up(f"a request header that cannot be read: {error}")
            return
        api = self._broker.router.api(header.api_key)
        if api is None or not api.oldest <= header.api_version <= api.newest:
            self._answer_unserved(header, api)
            return
        try:
            # Bytes after the request are passed over, as Kafka does: librdkafka asks for all topics with three more.
            request, _ = api.decoder(header.api_version)(frame, position)
        except Malformed as error:
            self.give_up(f"a {api.name} request (version {header.api_version}) that cannot be read: {error}")
            return
        context = RequestContext(self._broker, self._listener, self.peer, self.principal, header, started_ms)
        self._begin(api, request, context)

    def drained(self) -> None:
        self._hold_if_needed()

    def disconnected(self, reason: str) -> None:
        if reason:
            logger.info("Connection from %s closed: %s", self.peer, reason)
        self._gate.leave(self)
        if self._unmute:
            self._unmute.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._replies.clear()

    # -- one request

    def _begin(self, api: "Api", request: Any, context: RequestContext) -> None:
        coroutine = api.handle(request, context)
        try:
            waits_for = coroutine.send(None)
        except StopIteration as stop:
            self._finish(api, context, stop.value, None)
        except KafkaError as error:
            self._finish(api, context, api.refuse(request, error, context.api_version), None)
        except CloseConnection as order:
            self.give_up(str(order))
        except Exception as error:
            self._answer_bug(api, request, context, error, None)
        else:
            reply = _Reply()
            self._replies.append(reply)
            rest = _resumed(coroutine, waits_for)
            task = asyncio.get_running_loop().create_task(self._wait(api, request, context, rest, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._hold_if_needed()

    async def _wait(self, api: "Api", request: Any, context: RequestContext, rest: Any, reply: _Reply) -> None:
        try:
            response = await rest
        except KafkaError as error:
            response = api.refuse(request, error, context.api_version)
        except CloseConnection as order:
            self.give_up(str(order))
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._answer_bug(api, request, context, error, reply)
            return
        self._finish(api, context, response, reply)

    def _finish(self, api: "Api", context: RequestContext, response: Any, reply: _Reply | None) -> None:
        pieces: list[Piece] = []
        if response is not None:
            pieces = frame_response(api.key, context.api_version, context.correlation_id, response)
        api.meter.finished(self._broker.clock.monotonic_ms() - context.started_ms)
        self._send(pieces, reply)
        if context.throttle_ms:
            self._mute(context.throttle_ms)

    def _send(self, pieces: list[Piece], reply: _Reply | None) -> None:
        connection = self._connection
        assert connection is not None
        replies = self._replies
        if reply is None:
            if not replies:
                if pieces:
                    connection.send(pieces)
                    self._hold_if_needed()
                return
            replies.append(_Reply(pieces))
            self._hold_if_needed()
            return
        reply.pieces = pieces
        while replies and replies[0].pieces is not None:
            ready = replies.popleft().pieces
            if ready:
                connection.send(ready)
        self._hold_if_needed()

    # -- what can go wrong

    def _answer_unserved(self, header: RequestHeader, api: "Api | None") -> None:
        if api is not None and api.unserved is not None:
            pieces = frame_response(header.api_key, 0, header.correlation_id, api.unserved())
            self._send(pieces, None)
            return
        self.give_up(f"a request for API {header.api_key} in version {header.api_version}, which is not served here")

    def _answer_bug(
        self, api: "Api", request: Any, context: RequestContext, error: Exception, reply: _Reply | None
    ) -> None:
        api.meter.errors += 1
        self._broker.report_bug(f"{api.name} version {context.api_version} from {self.peer}", error)
        told = KafkaError("The broker failed on this request; its log says more.")
        self._finish(api, context, api.refuse(request, told, context.api_version), reply)

    def give_up(self, reason: str) -> None:
        """Close because the peer does not speak the protocol, or because a handler cannot answer."""
        logger.warning("Closing the connection from %s (%s): %s", self.peer, self.principal, reason)
        assert self._connection is not None
        self._connection.close()

    def close(self) -> None:
        assert self._connection is not None
        self._connection.close()

    @property
    def is_waiting(self) -> bool:
        return bool(self._replies)

    # -- back-pressure

    def hold(self) -> None:
        """Read nothing until `let_go_on`."""
        assert self._connection is not None
        self._is_held = True
        self._connection.pause_reading()

    def let_go_on(self) -> None:
        self._hold_if_needed()

    def _hold_if_needed(self) -> None:
        connection = self._connection
        assert connection is not None
        is_full = len(self._replies) >= REQUESTS_IN_FLIGHT_MAX or connection.queued_bytes > QUEUED_BYTES_MAX
        if is_full and not self._is_held:
            self._is_held = True
            connection.pause_reading()
        elif self._is_held and not is_full and self._unmute is None:
            self._is_held = False
            connection.resume_reading()

    def _mute(self, throttle_ms: int) -> None:
        connection = self._connection
        assert connection is not None
        self._is_held = True
        connection.pause_reading()
        self._unmute = asyncio.get_running_loop().call_later(throttle_ms / 1000, self._end_mute)

    def _end_mute(self) -> None:
        self._unmute = None
        self._hold_if_needed()
