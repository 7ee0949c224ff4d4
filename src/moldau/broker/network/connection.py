"""One client's connection: its frames become requests, and answers go back in the order the requests came.

A handler is a coroutine that is started at once, in the turn its frame arrived: so requests of a connection *begin* in
order, and one that does not wait (nearly every produce and most fetches) costs no task. One that waits goes on as a
task while later requests begin; its answer holds back theirs.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.access import ANONYMOUS
from moldau.broker.fetch.follower_fetch import replica_of
from moldau.broker.handlers import produce
from moldau.broker.network.acknowledging import Acknowledging
from moldau.broker.network.exchange import Exchange
from moldau.broker.network.recurrence import Again, Recurrence, answer_to
from moldau.broker.network.repetition import PRODUCE, Known, Repetition
from moldau.broker.network.replies import Replies, Reply
from moldau.broker.network.unfinished import Unfinished, resumed
from moldau.broker.requests.context import CloseConnection, RequestContext
from moldau.broker.runtime.meters import ApiMeter
from moldau.model.errors import KafkaError, StorageFailed
from moldau.model.ports import Connection, Piece
from moldau.wire.codec import Malformed
from moldau.wire.follower_fetch import FETCH
from moldau.wire.framing import RequestHeader, frame_response, parse_request_header
from moldau.wire.messages import ProduceRequest

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.network.gate import Gate
    from moldau.broker.requests.router import Api, Router

FRAME_MS_MAX: Final = 60_000.0  # from its first byte to its last: a peer that dribbles holds a buffer
SIGNS_OF_PATIENCE: Final = 4  # so many signs of life with nothing in between: this connection is for them
CLOSING_MS_MAX: Final = 30_000.0  # to take what was sent before the end


class ServedConnection:
    """The broker's end of a client's connection."""

    __slots__ = (
        "_acknowledging",
        "_broker",
        "_closing_ms",
        "_connection",
        "_exchange",
        "_frame_seen_ms",
        "_gate",
        "_listener",
        "_recurrence",
        "_repetition",
        "_replies",
        "_router",
        "_waiting",
        "has_requested_metadata",
        "last_active_ms",
        "peer",
        "principal",
        "when_lost",
    )

    def __init__(self, broker: "Broker", router: "Router", listener: str, gate: "Gate") -> None:
        self._broker = broker
        self._listener = listener
        self._router = router
        self._gate = gate
        self._replies = Replies()
        self._repetition: Repetition | None = None  # of one that has produced
        self._acknowledging: Acknowledging | None = None  # and waits for other replicas
        self._recurrence: Recurrence | None = None  # of one that has said that it lives
        self._exchange: Exchange | None = None  # of one that follows
        self._waiting: dict[asyncio.Task[None] | Unfinished, None] = {}  # handlers, in the order they began
        self._connection: Connection | None = None
        self._frame_seen_ms: tuple[float, float] | None = None  # the last frame's time, when the next was seen to begin
        self._closing_ms: float | None = None
        self.principal = ANONYMOUS
        self.when_lost: Callable[[], None] | None = None  # for who wants to know that this peer is gone
        self.peer = ""
        self.last_active_ms = 0.0
        self.has_requested_metadata = False

    # -- the endpoint's side

    def connected(self, connection: Connection) -> None:
        self._connection = self._replies.connection = connection
        connection.when_turn_ends = self._turn_ended
        self.peer = connection.peer.host
        self.last_active_ms = self._broker.clock.monotonic_ms()
        complaint = self._gate.admit(self)
        if complaint:
            self._broker.complaints.write("refused", f"Refused a connection from {connection.peer}: {complaint}")
            connection.abort()

    def frame_received(self, frame: memoryview) -> None:
        repetition = self._repetition
        if repetition is not None:
            gathering = self._broker.gathering
            was_open = gathering.is_open
            assert self._connection is not None
            gathering.is_open = self._connection.is_in_run or not gathering.is_empty
            try:
                if repetition.append(frame):
                    return
            except KafkaError as error:
                self._refuse_produce(repetition, frame, error)
                return
            gathering.is_open = was_open
            if repetition.runs:
                self._send_repeated(repetition)
        started_ms = self.last_active_ms = self._broker.clock.monotonic_ms()
        if self._exchange is not None and self._exchange.takes(frame, started_ms):
            return
        recurrence = self._recurrence
        if recurrence is not None:
            if self._answered_again(recurrence, frame, started_ms):
                return
            self._has_more_to_say(recurrence)
        try:
            header, position = parse_request_header(frame)
        except Malformed as error:
            self.give_up("malformed", f"a request header that cannot be read: {error}")
            return
        api = self._router.api(header.api_key)
        if api is None or not api.oldest <= header.api_version <= api.newest:
            self._answer_unserved(header, api)
            return
        try:
            # Bytes after the request are passed over, as Kafka does: librdkafka asks for all topics with three more.
            request, _ = api.decoder(header.api_version)(frame, position)
        except Malformed as error:
            words = f"a {api.name} request (version {header.api_version}) that cannot be read: {error}"
            self.give_up("malformed", words)
            return
        gathering = self._broker.gathering
        if api.key == PRODUCE:
            assert self._connection is not None
            gathering.is_open = self._connection.is_in_run or not gathering.is_empty
            self._learn(frame, header, request, api.meter)
        else:
            gathering.close()  # whatever this request does to a log, it finds all of it there, and does it at once
            if api.key == FETCH and self._exchange is None and replica_of(request) >= 0:
                self._exchange = Exchange(self._broker, self._replies, api.meter, self._fetch_failed)
        context = RequestContext(self._broker, self._listener, self.peer, self.principal, header, started_ms, self)
        response = self._begin(api, request, context)
        if response is not None and api.recurs is not None:
            self._recall(frame, api, context, api.recurs(request, context, response), response)

    def _answered_again(self, recurrence: Recurrence, frame: memoryview, started_ms: float) -> bool:
        """Answer a sign of life that is like an earlier one; False if there is more to it."""
        known = recurrence.find(frame)
        if known is None or not self._broker.gathering.is_empty:
            return False
        try:
            if not known.again(started_ms):
                return False
        except KafkaError:
            return False
        known.meter.finished(self._broker.clock.monotonic_ms() - started_ms)
        self._replies.send([answer_to(frame, known)], None)
        recurrence.in_a_row += 1
        if recurrence.in_a_row == SIGNS_OF_PATIENCE and self._repetition is None:
            assert self._connection is not None
            self._connection.may_wait = True
        return True

    def _has_more_to_say(self, recurrence: Recurrence) -> None:
        recurrence.in_a_row = 0
        assert self._connection is not None
        self._connection.may_wait = False

    def _send_repeated(self, repetition: Repetition) -> None:
        """Answer what was produced in this turn so far, or have it wait for other replicas."""
        now_ms = self.last_active_ms = self._broker.clock.monotonic_ms()
        for run in repetition.take_runs():
            if not run.count:
                continue
            if run.partition is None:
                repetition.meter.finished_together(run.count, now_ms - run.started_ms)
                self._replies.send([run.answers], None)
            else:
                assert self._acknowledging is not None
                self._acknowledging.wait_for(run, now_ms)

    def _refused(self, known: Known, correlation_id: int, error: KafkaError) -> list[Piece]:
        header = RequestHeader(PRODUCE, known.version, correlation_id, "")
        now_ms = self._broker.clock.monotonic_ms()
        context = RequestContext(self._broker, self._listener, self.peer, self.principal, header, now_ms, self)
        response = produce.reject_batches(ProduceRequest(topic_data=[known.said]), error, context)
        return frame_response(PRODUCE, known.version, correlation_id, response)

    def _refuse_produce(self, repetition: Repetition, frame: memoryview, error: KafkaError) -> None:
        if repetition.runs:
            self._send_repeated(repetition)
        header, position = parse_request_header(frame)
        api = self._router.api(PRODUCE)
        assert api is not None
        request, _ = api.decoder(header.api_version)(frame, position)
        now_ms = self._broker.clock.monotonic_ms()
        context = RequestContext(self._broker, self._listener, self.peer, self.principal, header, now_ms, self)
        self._finish(api, context, produce.reject_batches(request, error, context), None)

    def _recall(
        self, frame: memoryview, api: "Api", context: RequestContext, again: Again | None, response: Any
    ) -> None:
        """Remember a request that was answered at once, if another like it can be done without being taken apart."""
        if again is None or not self._broker.allows_all:
            return
        if self._recurrence is None:
            self._recurrence = Recurrence()
        pieces = frame_response(api.key, context.api_version, context.correlation_id, response)
        self._recurrence.learn(frame, again, pieces, api.meter)

    def _learn(self, frame: memoryview, header: RequestHeader, request: Any, meter: ApiMeter) -> None:
        if self._repetition is None:
            broker = self._broker
            self._repetition = Repetition(broker, meter)
            self._acknowledging = Acknowledging(broker.clock, self._replies, meter, self._refused)
        self._repetition.learn(frame, header, request)

    def _turn_ended(self) -> None:
        """Nothing that was gathered is acknowledged unless it was written."""
        gathering = self._broker.gathering
        gathering.is_open = False
        if not gathering.is_empty:
            assert self._connection is not None
            gathering.more_follows = self._connection.is_in_frame
            failure = gathering.end()
            gathering.more_follows = False
            if failure is not None:
                self._broker.complaints.write("unwritten", f"Closing the connection from {self.peer}: {failure}")
                self._connection.abort()
        if self._repetition is not None and self._repetition.runs:
            self._send_repeated(self._repetition)

    def drained(self) -> None:
        self._replies.hold_if_needed()

    def disconnected(self, reason: str) -> None:
        if reason:
            kind = " ".join(reason.split()[:3])
            self._broker.complaints.write(kind, f"Connection from {self.peer} closed: {reason}", logging.INFO)
        self._gate.leave(self)
        if self.when_lost is not None:
            self.when_lost()
        if self._exchange is not None:
            self._exchange.close()
        if self._acknowledging is not None:
            self._acknowledging.close()
        waiting, self._waiting = self._waiting, {}
        for handler in waiting:
            handler.cancel()
        self._replies.clear()

    # -- one request

    def _begin(self, api: "Api", request: Any, context: RequestContext) -> Any:
        """Start its handler. What that answered, if it did so at once; then it is answered."""
        coroutine = api.handle(request, context)
        try:
            waits_for = coroutine.send(None)
        except StopIteration as stop:
            response = stop.value
        except KafkaError as error:
            response = api.error_response(request, error, context.api_version)
        except CloseConnection as order:
            self.give_up("handler", str(order))
            return None
        except Exception as error:
            self._answer_failure(api, request, context, error, None)
            return None
        else:
            self._go_on_later(api, request, context, coroutine, waits_for)
            return None
        self._finish(api, context, response, None)
        return response

    def _go_on_later(
        self, api: "Api", request: Any, context: RequestContext, coroutine: Coroutine[Any, Any, Any], waits_for: object
    ) -> None:
        reply = Reply(context.weight)
        self._replies.line_up(reply)
        if not api.needs_task:

            def end(response: Any, error: Exception | None) -> None:
                self._waiting.pop(handler, None)
                self._end(api, request, context, reply, response, error)

            handler = Unfinished(coroutine, waits_for, end)
            self._waiting[handler] = None
            return
        rest = resumed(coroutine, waits_for)
        task = asyncio.get_running_loop().create_task(self._wait(api, request, context, rest, reply))
        self._waiting[task] = None
        task.add_done_callback(lambda done: self._waiting.pop(done, None))

    async def _wait(self, api: "Api", request: Any, context: RequestContext, rest: Any, reply: Reply) -> None:
        try:
            response, failure = await rest, None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            response, failure = None, error
        self._end(api, request, context, reply, response, failure)

    def _end(
        self, api: "Api", request: Any, context: RequestContext, reply: Reply, response: Any, error: Exception | None
    ) -> None:
        """Of a handler that has waited."""
        match error:
            case None:
                self._finish(api, context, response, reply)
            case KafkaError():
                self._finish(api, context, api.error_response(request, error, context.api_version), reply)
            case CloseConnection():
                self.give_up("handler", str(error))
            case _:
                self._answer_failure(api, request, context, error, reply)

    def _finish(self, api: "Api", context: RequestContext, response: Any, reply: Reply | None) -> None:
        pieces: list[Piece] = []
        if response is not None:
            try:
                pieces = frame_response(api.key, context.api_version, context.correlation_id, response)
            except Exception as error:
                self._report_bug(api, context, error)
                self.give_up("handler", f"its {api.name} request could not be answered")
                return
        api.meter.finished(self._broker.clock.monotonic_ms() - context.started_ms)
        self._replies.send(pieces, reply)
        if context.throttle_ms:
            self._replies.mute(context.throttle_ms)

    # -- what can go wrong

    def _answer_unserved(self, header: RequestHeader, api: "Api | None") -> None:
        if api is not None and api.unsupported_version_response is not None:
            pieces = frame_response(header.api_key, 0, header.correlation_id, api.unsupported_version_response())
            self._replies.send(pieces, None)
            return
        asked = f"a request for API {header.api_key} in version {header.api_version}"
        self.give_up("unserved", f"{asked}, which is not served here")

    def _answer_failure(
        self, api: "Api", request: Any, context: RequestContext, error: Exception, reply: Reply | None
    ) -> None:
        """The disk's failure is told as such; anything else is a bug of ours."""
        told: KafkaError
        if isinstance(error, OSError):
            api.meter.errors += 1
            words = f"A {api.name} request from {self.peer} failed: {error}"
            self._broker.complaints.write("disk", words, logging.ERROR)
            told = StorageFailed(f"The disk refuses: {error.strerror}.")
        else:
            self._report_bug(api, context, error)
            told = KafkaError("The broker failed on this request; its log says more.")
        self._finish(api, context, api.error_response(request, told, context.api_version), reply)

    def _report_bug(self, api: "Api", context: RequestContext, error: Exception) -> None:
        api.meter.errors += 1
        self._broker.report_bug(f"{api.name} version {context.api_version} from {self.peer}", error)

    def _fetch_failed(self, error: Exception) -> None:
        """Of a follower, which begins anew then."""
        if isinstance(error, OSError):
            self._broker.complaints.write("disk", f"A follower's fetch failed: {error}", logging.ERROR)
        else:
            self._broker.report_bug(f"Fetch of a follower from {self.peer}", error)
        self.give_up("handler", "a follower's fetch could not be answered")

    def give_up(self, kind: str, reason: str) -> None:
        """Close because the peer does not speak the protocol, or because a handler cannot answer."""
        where = self._connection.peer if self._connection else self.peer
        self._broker.complaints.write(kind, f"Closing the connection from {where} ({self.principal}): {reason}")
        self.close()

    def close(self) -> None:
        assert self._connection is not None
        if self._closing_ms is None:
            self._closing_ms = self._broker.clock.monotonic_ms()
        self._connection.close()

    # -- the gate's side

    def look_after(self, now_ms: float, idle_ms: int) -> None:
        """Called every few seconds: end what takes too long."""
        assert self._connection is not None
        if self._closing_ms is not None:
            if now_ms - self._closing_ms > CLOSING_MS_MAX:
                self._connection.abort()
        elif self._is_stuck_in_frame(now_ms):
            self.give_up("slow", f"it has not sent a whole request in {FRAME_MS_MAX / 1000:.0f} seconds")
        elif 0 <= idle_ms < now_ms - self.last_active_ms and not self._replies:
            if self._connection.queued_bytes:
                self.give_up("slow", "it does not read its answers")
            self.close()

    def _is_stuck_in_frame(self, now_ms: float) -> bool:
        assert self._connection is not None
        if not self._connection.is_in_frame:
            self._frame_seen_ms = None
        elif self._frame_seen_ms is None or self._frame_seen_ms[0] != self.last_active_ms:
            self._frame_seen_ms = self.last_active_ms, now_ms
        else:
            return now_ms - self._frame_seen_ms[1] > FRAME_MS_MAX
        return False

    def hold(self) -> None:
        """Read nothing until `let_go_on`."""
        self._replies.hold()

    def let_go_on(self) -> None:
        self._replies.hold_if_needed()
