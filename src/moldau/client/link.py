"""A conversation on a real (or simulated) connection: effects are carried out, time and frames are handed in."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from moldau.client.connection import Authentication, Close, Conversation, Deliver, Effect, Fail, Phase, SendFrame
from moldau.client.errors import NoAnswer
from moldau.client.settings import ClientSettings
from moldau.model.ids import Address
from moldau.model.ports import Clock, Connection, Network
from moldau.model.units import MiB

QUEUED_BYTES_MAX: Final = 16 * MiB  # beyond it, senders wait
CLOSE_S_MAX: Final = 5.0
NO_TICKET: Final = 0


class _Asker(NamedTuple):
    """Who waits for an answer. Exactly one of the two is called, once."""

    hear: Callable[[Any], None]
    fail: Callable[[Exception], None]
    borrows: bool  # it is done with the buffers in the answer when `hear` returns
    read: Callable[[memoryview], Any] | None = None  # makes something of a frame, or None: then it is decoded


class Link:
    """One connection to one broker. It is opened once; when it is closed it stays so."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        settings: ClientSettings,
        authentication: Authentication | None = None,
        when_lost: Callable[[str], None] | None = None,
    ) -> None:
        """`when_lost` hears why the connection ended, unless we closed it or it never stood."""
        self.address = address
        self._when_lost = when_lost
        self._clock = clock
        self._settings = settings
        self._client_id = (settings.client_id or "").encode()
        self._conversation = Conversation(str(address), settings, authentication)
        self._connection: Connection | None = None
        self._askers: dict[int, _Asker] = {}
        self._next_ticket = 0
        self._effects: deque[Effect] = deque()
        self._is_acting = False
        self._is_polite = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = math.inf
        self._drained = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._conversation.phase is Phase.CLOSED

    @property
    def is_idle(self) -> bool:
        """Nobody waits for an answer."""
        return self._conversation.is_idle

    @property
    def features(self) -> Mapping[str, int]:
        """What the cluster has finalized, by name; empty until the first answer has come."""
        return self._conversation.features

    async def open(self, network: Network) -> None:
        """Connect; `OSError` when nobody answers in time. Versions are negotiated while requests already wait."""
        patience_ms = self._settings.connect_timeout_ms
        try:
            async with asyncio.timeout(patience_ms / 1000):
                await network.connect(self.address, self, self._settings.frame_bytes_max)
        except TimeoutError:
            self._drop("no connection in time")
            raise TimeoutError(f"no connection within {patience_ms / 1000:g} s") from None
        except BaseException as error:
            self._drop(str(error))
            raise

    def ask(
        self,
        request: Any,
        *,
        timeout_ms: float | None = None,
        version_at_most: int | None = None,
        version_at_least: int = 0,
    ) -> asyncio.Future[Any]:
        """The future answer. It may be cancelled; the answer is then dropped when it comes."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def hear(response: Any) -> None:
            if not future.done():
                future.set_result(response)

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        self._ask(_Asker(hear, fail, borrows=False), request, timeout_ms, version_at_most, version_at_least)
        return future

    def borrow(
        self, request: Any, *, timeout_ms: float, hear: Callable[[Any], None], fail: Callable[[Exception], None]
    ) -> None:
        """Ask without a future, for an answer that is not copied.

        `hear` is called with it on the spot, may use the buffers in it until it returns, and may ask again. Where there
        is no answer, `fail` is called instead, perhaps before this returns. Neither may raise.
        """
        self._ask(_Asker(hear, fail, borrows=True), request, timeout_ms, None)

    def borrow_at_once(
        self,
        message: type[Any],
        versions: tuple[int, int],
        *,
        timeout_ms: float,
        write: Callable[[int, int, bytes], bytes],
        read: Callable[[memoryview], Any],
        hear: Callable[[Any], None],
        fail: Callable[[Exception], None],
    ) -> bool:
        """The same for one who writes and reads frames itself, without the codec, in one of some versions. False, and
        nothing done, if that cannot be now.

        `write` is given version, correlation id and client id. `hear` is given what `read` made of the frame; where
        that was None, an answer of the kind that belongs to `message`.
        """
        if self._effects or self._connection is None:
            return False
        ticket = self._next_ticket + 1
        numbers = self._conversation.leave_at_once(ticket, message, versions, self._now_ms(), timeout_ms)
        if numbers is None:
            return False
        self._next_ticket = ticket
        self._askers[ticket] = _Asker(hear, fail, True, read)
        self._connection.send([write(*numbers, self._client_id)])
        if self._timer is None or self._conversation.wake_at_ms < self._timer_at_ms:
            self._set_timer()
        return True

    def _ask(
        self,
        asker: _Asker,
        request: Any,
        timeout_ms: float | None,
        version_at_most: int | None,
        version_at_least: int = 0,
    ) -> None:
        self._next_ticket += 1
        self._askers[self._next_ticket] = asker
        self._act(
            self._conversation.asked(
                self._next_ticket,
                request,
                self._now_ms(),
                timeout_ms=timeout_ms,
                version_at_most=version_at_most,
                version_at_least=version_at_least,
            )
        )

    async def has_room(self, timeout_ms: float | None = None) -> None:
        """Wait while the broker takes what was sent too slowly. Requests without answers are bounded by this alone.

        A broker that takes nothing at all for as long as an answer may take is left.
        """
        patience_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        while self._connection is not None and self._connection.queued_bytes > QUEUED_BYTES_MAX:
            before_bytes = self._connection.queued_bytes
            self._drained.clear()
            try:
                async with asyncio.timeout(patience_ms / 1000):
                    await self._drained.wait()
            except TimeoutError:
                if self._connection is not None and self._connection.queued_bytes >= before_bytes:
                    said = f"{self.address} took nothing of what was sent within {patience_ms / 1000:g} s"
                    self._drop(said)
                    raise NoAnswer(said, was_sent=False) from None

    async def close(self) -> None:
        """Let what was sent leave, then close; who still waits for an answer hears that we did."""
        self._is_polite = True
        self._act(self._conversation.lost("we closed it"))
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._gone.wait()
        except TimeoutError:
            self._hang_up()

    # What the connection tells us

    def connected(self, connection: Connection) -> None:
        if self.is_closed:  # we gave up waiting a moment ago
            connection.abort()
            return
        self._connection = connection
        self._act(self._conversation.opened(self._now_ms()))

    def frame_received(self, frame: memoryview) -> None:
        # The frame is lent; answers are kept, with the record batches in them as views of one copy.
        conversation = self._conversation
        ticket = conversation.next_ticket or NO_TICKET
        asker = self._askers.get(ticket)
        if asker is not None and asker.read is not None:
            answer = asker.read(frame)
            if answer is not None and conversation.was_answered(frame):
                del self._askers[ticket]
                asker.hear(answer)
                if conversation.has_waiting:
                    self._act(conversation.passed(self._now_ms()))
                return
        kept = frame if asker is not None and asker.borrows else memoryview(bytes(frame))
        self._act(self._conversation.received(kept, self._now_ms()))

    def drained(self) -> None:
        self._drained.set()

    def disconnected(self, reason: str) -> None:
        was_ours = self.is_closed
        self._connection = None
        self._gone.set()
        self._drained.set()
        self._act(self._conversation.lost(reason))
        if not was_ours and self._when_lost is not None:
            self._when_lost(reason or "the other side closed it")

    # What the conversation wants

    def _act(self, effects: list[Effect]) -> None:
        """In their order, whatever those who hear an answer ask meanwhile."""
        self._effects.extend(effects)
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while self._effects:
                self._do(self._effects.popleft())
        finally:
            self._is_acting = False
        self._set_timer()

    def _do(self, effect: Effect) -> None:
        match effect:
            case SendFrame(pieces):
                if self._connection is not None:
                    self._connection.send(pieces)
            case Deliver(ticket, response):
                self._askers.pop(ticket).hear(response)
            case Fail(ticket, error):
                self._askers.pop(ticket).fail(error)
            case Close():
                self._hang_up(is_polite=self._is_polite)

    def hang_up(self) -> None:
        """Close now and drop what was to be sent."""
        self._drop("we closed it")

    def _drop(self, reason: str) -> None:
        self._act(self._conversation.lost(reason))
        self._hang_up()

    def _hang_up(self, *, is_polite: bool = False) -> None:
        if self._connection is None:
            self._gone.set()
        elif is_polite:
            self._connection.close()
        else:
            self._connection.abort()

    def _set_timer(self) -> None:
        """One timer, moved only forward to an earlier time; ringing too early is cheap."""
        wake_at_ms = self._conversation.wake_at_ms
        if self.is_closed or wake_at_ms < self._timer_at_ms:
            self._stop_timer()
        if self._timer is None and wake_at_ms != math.inf:
            delay_ms = max(0.0, wake_at_ms - self._now_ms())
            self._timer_at_ms = wake_at_ms
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._ring)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = math.inf

    def _ring(self) -> None:
        self._timer = None
        self._timer_at_ms = math.inf
        self._act(self._conversation.passed(self._now_ms()))

    def _now_ms(self) -> float:
        return self._clock.monotonic_ms()
