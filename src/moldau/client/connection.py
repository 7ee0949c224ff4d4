"""One connection to a broker without the connection: frames and times go in, effects come out.

    CONNECTING --opened--> NEGOTIATING --ApiVersions--> [AUTHENTICATING] --> READY --lost, broken or timed out--> CLOSED

Requests may be asked in any phase; they wait until READY and until fewer than the bound are in flight. Answers come in
the order of the questions (the protocol promises it), so a wrong correlation id means the stream is broken. A request
that is not answered in time closes the connection: every later answer would be stuck behind the missing one.
"""

import math
import struct
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from moldau import __version__
from moldau.client.errors import ConnectionLost, NoAnswer, TooManyWaiting, error_of
from moldau.client.settings import ClientSettings
from moldau.model.errors import ErrorCode, KafkaError, UnsupportedVersion
from moldau.model.ports import Piece
from moldau.wire import codec, framing, messages

API_VERSIONS: Final = 18
PRODUCE: Final = 0
CORRELATION_ID_MAX: Final = 2**31 - 1

# Yields the requests to send, is given each response, returns when the broker is satisfied; raises KafkaError if not.
Authentication = Generator[Any, Any, None]

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
    """Give these pieces, one whole frame, to the connection."""

    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Deliver:
    """The answer to the request with this ticket; None where the protocol sends none (acks=0)."""

    ticket: int
    response: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """There will be no answer to the request with this ticket."""

    ticket: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Close:
    """Drop the connection; nothing more comes from this conversation."""

    reason: str


Effect = SendFrame | Deliver | Fail | Close


@dataclass(slots=True)
class _Asked:
    """A request on its way. Our own (negotiation, authentication) have no ticket."""

    ticket: int | None
    request: Any
    timeout_ms: float
    deadline_ms: float  # until it is sent at the latest; from then on, until it is answered
    version_at_most: int | None = None
    version_at_least: int = 0
    version: int = -1
    correlation_id: int = -1


class Conversation:
    """What is said on one connection: which versions, who waits for which answer, until when."""

    def __init__(self, peer: str, settings: ClientSettings, authentication: Authentication | None = None) -> None:
        self.phase = Phase.CONNECTING
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        self._peer = peer
        self._settings = settings
        self._authentication = authentication
        self._waiting: deque[_Asked] = deque()
        self._in_flight: deque[_Asked] = deque()
        self._next_correlation_id = 0
        self._quiet_until_ms = 0.0
        self._spoken: dict[tuple[int, int | None, int], int] = {}  # versions that were found, by what was asked for
        self.wake_at_ms = math.inf  # when `passed` should be called next, or earlier: moving it at every answer is dear

    # Events

    def opened(self, now_ms: float) -> list[Effect]:
        """The connection stands: ask the broker what it speaks."""
        self.phase = Phase.NEGOTIATING
        known = codec.versions(API_VERSIONS)
        assert known is not None
        return self._negotiate(known[1], now_ms)

    def asked(
        self,
        ticket: int,
        request: Any,
        now_ms: float,
        *,
        timeout_ms: float | None = None,
        version_at_most: int | None = None,
        version_at_least: int = 0,
    ) -> list[Effect]:
        """Somebody wants an answer; it will be delivered or failed under this ticket, exactly once.

        The time-out is for waiting in our own queue, and once more for the answer: a broker is not silent before it
        was asked.
        """
        if self.phase is Phase.CLOSED:
            return [Fail(ticket, ConnectionLost(f"the connection to {self._peer} is closed", was_sent=False))]
        if len(self._waiting) >= self._settings.requests_waiting_max:
            return [Fail(ticket, TooManyWaiting(f"{len(self._waiting)} requests wait for {self._peer} already"))]
        patience_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = now_ms + patience_ms
        self._waiting.append(_Asked(ticket, request, patience_ms, deadline_ms, version_at_most, version_at_least))
        self.wake_at_ms = min(self.wake_at_ms, deadline_ms)
        return self._send_waiting(now_ms)

    def leave_at_once(
        self, ticket: int, message: type[Any], versions: tuple[int, int], now_ms: float, timeout_ms: float
    ) -> tuple[int, int] | None:
        """Version and correlation id of a request whose asker writes the frame itself; None if it cannot leave now."""
        has_room = not self._waiting and len(self._in_flight) < self._settings.requests_in_flight_max
        if self.phase is not Phase.READY or not has_room or now_ms < self._quiet_until_ms:
            return None
        oldest, newest = versions
        try:
            version = self.version_for(message.API_KEY, newest, oldest)
        except UnsupportedVersion:
            return None
        correlation_id = self._next_correlation_id
        deadline_ms = now_ms + timeout_ms
        self._in_flight.append(_Asked(ticket, message, timeout_ms, deadline_ms, None, 0, version, correlation_id))
        self._next_correlation_id = (correlation_id + 1) % CORRELATION_ID_MAX
        if deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms
        return version, correlation_id

    def was_answered(self, frame: memoryview) -> bool:
        """Whether this is the answer that is due, which its asker has read itself; it is no longer in flight then."""
        if self.phase is not Phase.READY or _INT32.unpack_from(frame)[0] != self._in_flight[0].correlation_id:
            return False
        self._in_flight.popleft()
        return True

    @property
    def has_waiting(self) -> bool:
        """Whether something could not leave yet, of which `passed` finds out whether it can now."""
        return bool(self._waiting)

    def received(self, frame: memoryview, now_ms: float) -> list[Effect]:
        """A frame came in, without its length. What is delivered may keep views of it."""
        if self.phase is Phase.CLOSED:
            return []
        if not self._in_flight:
            return self._break("it sent an answer that nobody asked for")
        if len(frame) < 4 or _INT32.unpack_from(frame)[0] != self._in_flight[0].correlation_id:
            return self._break("it sent an answer to another question")
        question = self._in_flight.popleft()
        try:
            effects = self._hear(question, frame, now_ms)
        except codec.Malformed as error:
            self._in_flight.appendleft(question)
            return self._break(f"its answer to {codec.api_name(question.request.API_KEY)} makes no sense: {error}")
        return effects

    def passed(self, now_ms: float) -> list[Effect]:
        """Time went by: fail what is overdue, send what was throttled."""
        if self.phase is Phase.CLOSED:
            return []
        if any(each.deadline_ms <= now_ms for each in self._in_flight):
            return self._give_up(now_ms)
        overdue = [each for each in self._waiting if each.deadline_ms <= now_ms]
        if overdue:
            self._waiting = deque(each for each in self._waiting if each.deadline_ms > now_ms)
        effects = [*self._time_out(overdue, was_sent=False), *self._send_waiting(now_ms)]
        self.wake_at_ms = min((each.deadline_ms for each in (*self._in_flight, *self._waiting)), default=math.inf)
        if now_ms < self._quiet_until_ms:
            self.wake_at_ms = min(self.wake_at_ms, self._quiet_until_ms)
        return effects

    def lost(self, reason: str) -> list[Effect]:
        """The connection is gone, or never came."""
        if self.phase is Phase.CLOSED:
            return []
        said = reason or "the broker closed it"
        if self.phase is Phase.NEGOTIATING:
            said += " while versions were negotiated (is it a Kafka listener, with the right security protocol?)"
        return self._end(f"lost the connection to {self._peer}: {said}")

    # Questions

    @property
    def next_ticket(self) -> int | None:
        """Whose answer comes next; None for our own questions, and where nobody waits."""
        return self._in_flight[0].ticket if self._in_flight else None

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._in_flight

    def version_for(self, api_key: int, version_at_most: int | None = None, version_at_least: int = 0) -> int:
        """The highest version both sides speak, or `UnsupportedVersion` with both ranges in words."""
        key = api_key, version_at_most, version_at_least
        version = self._spoken.get(key)
        if version is None:
            version = self._spoken[key] = self._find_version(*key)
        return version

    def _find_version(self, api_key: int, version_at_most: int | None, version_at_least: int) -> int:
        ours, theirs = codec.versions(api_key), self.versions.get(api_key)
        if ours is None:
            raise UnsupportedVersion(f"this client does not know {codec.api_name(api_key)}")
        if theirs is None:
            asked = codec.api_name(api_key)
            hint = "; is that a controller? Ask a broker" if asked == "Metadata" else ""  # every broker offers it
            raise UnsupportedVersion(f"{self._peer} does not offer {asked}{hint}")
        newest = ours[1] if version_at_most is None else min(ours[1], version_at_most)
        oldest = max(ours[0], version_at_least)
        highest = min(newest, theirs[1])
        if highest < max(oldest, theirs[0]):
            spoken = f"{self._peer} speaks {codec.api_name(api_key)} {theirs[0]}-{theirs[1]}"
            raise UnsupportedVersion(f"{spoken}, this request needs {oldest}-{newest}")
        return highest

    # Negotiation

    def _negotiate(self, version: int, now_ms: float) -> list[Effect]:
        request = messages.ApiVersionsRequest(client_software_name="moldau", client_software_version=__version__)
        return self._ask_ourselves(request, version, now_ms)

    def _hear_versions(self, version: int, body: memoryview, now_ms: float) -> list[Effect]:
        # The error code is at the same place in every version, and a broker that does not know
        # the version we used answers in version 0.
        if len(body) < 2:
            return self._break("its answer to ApiVersions is too short")
        code = _INT16.unpack_from(body)[0]
        if code == ErrorCode.UNSUPPORTED_VERSION:
            return self._step_down(version, body, now_ms)
        if code != ErrorCode.NONE:
            return self._break(f"it refused to tell its versions: {error_of(code).message}")
        response = _decode(API_VERSIONS, version, body)
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        self._spoken.clear()
        self.features = {each.name: each.max_version_level for each in response.finalized_features or ()}
        return self._authenticate(now_ms)

    def _step_down(self, version: int, body: memoryview, now_ms: float) -> list[Effect]:
        if version == 0:
            return self._break("it does not speak any version of ApiVersions")
        try:
            offers = _decode(API_VERSIONS, 0, body).api_keys
        except codec.Malformed:
            offers = ()
        offered = max((each.max_version for each in offers if each.api_key == API_VERSIONS), default=0)
        # Always downwards, whatever the broker claims, so that the exchange ends.
        return self._negotiate(max(0, min(offered, version - 1)), now_ms)

    # Authentication

    def _authenticate(self, now_ms: float) -> list[Effect]:
        if self._authentication is None:
            return self._become_ready(now_ms)
        self.phase = Phase.AUTHENTICATING
        return self._continue_authentication(None, now_ms)

    def _continue_authentication(self, response: Any, now_ms: float) -> list[Effect]:
        assert self._authentication is not None
        try:
            request = self._authentication.send(response)
            return self._ask_ourselves(request, self.version_for(request.API_KEY), now_ms)
        except StopIteration:
            return self._become_ready(now_ms)
        except KafkaError as error:
            return self._end_with(error)

    def _become_ready(self, now_ms: float) -> list[Effect]:
        self.phase = Phase.READY
        return self._send_waiting(now_ms)

    # Asking and hearing

    def _ask_ourselves(self, request: Any, version: int, now_ms: float) -> list[Effect]:
        patience_ms = self._settings.request_timeout_ms
        question = _Asked(None, request, patience_ms, now_ms + patience_ms, version=version)
        self.wake_at_ms = min(self.wake_at_ms, question.deadline_ms)
        return [self._put_in_flight(question, now_ms)]

    def _send_waiting(self, now_ms: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.phase is not Phase.READY or now_ms < self._quiet_until_ms:
            return effects
        while self._waiting and len(self._in_flight) < self._settings.requests_in_flight_max:
            effects.extend(self._send(self._waiting.popleft(), now_ms))
        return effects

    def _send(self, question: _Asked, now_ms: float) -> list[Effect]:
        assert question.ticket is not None
        try:
            question.version = self.version_for(
                question.request.API_KEY, question.version_at_most, question.version_at_least
            )
            frame = self._put_in_flight(question, now_ms)
        except Exception as error:  # a request that cannot be encoded is its asker's failure, not the connection's
            return [Fail(question.ticket, error)]
        if question.request.API_KEY == PRODUCE and question.request.acks == 0:
            self._in_flight.pop()
            return [frame, Deliver(question.ticket, None)]
        return [frame]

    def _put_in_flight(self, question: _Asked, now_ms: float) -> SendFrame:
        question.deadline_ms = now_ms + question.timeout_ms
        question.correlation_id = self._next_correlation_id
        header = framing.RequestHeader(
            question.request.API_KEY, question.version, question.correlation_id, self._settings.client_id
        )
        pieces = framing.frame_request(header, question.request)
        self._next_correlation_id = (self._next_correlation_id + 1) % CORRELATION_ID_MAX
        self._in_flight.append(question)
        return SendFrame(pieces)

    def _hear(self, question: _Asked, frame: memoryview, now_ms: float) -> list[Effect]:
        api_key = question.request.API_KEY
        _, position = framing.parse_response_header(api_key, question.version, frame)
        body = frame[position:]
        if self.phase is Phase.NEGOTIATING:
            return self._hear_versions(question.version, body, now_ms)
        response = _decode(api_key, question.version, body)
        if question.ticket is None:
            return self._continue_authentication(response, now_ms)
        self._be_quiet_if_told(response, now_ms)
        return [Deliver(question.ticket, response), *self._send_waiting(now_ms)]

    def _be_quiet_if_told(self, response: Any, now_ms: float) -> None:
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._quiet_until_ms = now_ms + throttle_ms
            self.wake_at_ms = min(self.wake_at_ms, self._quiet_until_ms)

    # Endings

    def _give_up(self, now_ms: float) -> list[Effect]:
        stuck, waiting = list(self._in_flight), list(self._waiting)
        late = [each for each in stuck if each.deadline_ms <= now_ms]
        self._in_flight = deque(each for each in stuck if each.deadline_ms > now_ms)
        self._waiting = deque(each for each in waiting if each.deadline_ms > now_ms)
        effects = self._time_out(late, was_sent=True)
        effects += self._time_out([each for each in waiting if each.deadline_ms <= now_ms], was_sent=False)
        name = codec.api_name(late[0].request.API_KEY)
        return [*effects, *self._end(f"{self._peer} did not answer {name} in time, so its connection was closed")]

    def _time_out(self, questions: list[_Asked], *, was_sent: bool) -> list[Effect]:
        return [
            Fail(each.ticket, NoAnswer(self._lateness(each, was_sent), was_sent=was_sent))
            for each in questions
            if each.ticket is not None
        ]

    def _lateness(self, question: _Asked, was_sent: bool) -> str:
        name = codec.api_name(question.request.API_KEY)
        why = "did not answer" if was_sent else f"was still {self.phase.value} or busy and could not be sent"
        return f"{self._peer} {why} {name} in time"

    def _break(self, why: str) -> list[Effect]:
        return self._end(f"closed the connection to {self._peer}: {why}")

    def _end(self, reason: str) -> list[Effect]:
        asked = [(each, True) for each in self._in_flight] + [(each, False) for each in self._waiting]
        fails = [
            Fail(each.ticket, ConnectionLost(reason, was_sent=was_sent))
            for each, was_sent in asked
            if each.ticket is not None
        ]
        return self._finish([*fails], reason)

    def _end_with(self, error: KafkaError) -> list[Effect]:
        fails = [Fail(each.ticket, error) for each in self._waiting if each.ticket is not None]
        return self._finish([*fails], f"{self._peer} did not let us in: {error.message}")

    def _finish(self, effects: list[Effect], reason: str) -> list[Effect]:
        self._in_flight.clear()
        self._waiting.clear()
        self.phase = Phase.CLOSED
        self.wake_at_ms = math.inf
        if self._authentication is not None:
            self._authentication.close()
        return [*effects, Close(reason)]


def _decode(api_key: int, version: int, body: memoryview) -> Any:
    """Bytes after a whole answer are let pass, as other clients do: some brokers write a tag section too many."""
    response, _ = codec.response_decoder(api_key, version)(body, 0)
    return response
