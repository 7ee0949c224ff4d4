"""A conversation on a real (or simulated) connection: effects are carried out, time and frames are handed in."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from moldau.client.connection import Authentication, Close, Conversation, Deliver, Effect, Fail, Phase, SendFrame
from moldau.client.settings import ClientSettings
from moldau.model.ids import Address
from moldau.model.ports import Clock, Connection, Network
from moldau.model.units import MiB

QUEUED_BYTES_MAX: Final = 16 * MiB  # beyond it, senders wait
CLOSE_S_MAX: Final = 5.0


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
        self._conversation = Conversation(str(address), settings, authentication)
        self._connection: Connection | None = None
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._hearers: dict[int, Callable[[Any], Any]] = {}
        self._next_ticket = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = math.inf
        self._drained = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._conversation.phase is Phase.CLOSED

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
        hear: Callable[[Any], Any] | None = None,
    ) -> asyncio.Future[Any]:
        """The future answer. It may be cancelled; the answer is then dropped when it comes.

        An answer that is heard by `hear` is not copied: its buffers are lent for that call, whose result is awaited.
        """
        self._next_ticket += 1
        future = self._futures[self._next_ticket] = asyncio.get_running_loop().create_future()
        if hear is not None:
            self._hearers[self._next_ticket] = hear
        effects = self._conversation.asked(
            self._next_ticket, request, self._now_ms(), timeout_ms=timeout_ms, version_at_most=version_at_most
        )
        self._act(effects)
        return future

    async def has_room(self) -> None:
        """Wait while the broker takes what was sent too slowly. Requests without answers are bounded by this alone."""
        while self._connection is not None and self._connection.queued_bytes > QUEUED_BYTES_MAX:
            self._drained.clear()
            await self._drained.wait()

    async def close(self) -> None:
        """Let what was sent leave, then close; who still waits for an answer hears that we did."""
        self._act(self._conversation.lost("we closed it"), is_polite=True)
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
        kept = frame if self._conversation.next_ticket in self._hearers else memoryview(bytes(frame))
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

    def _act(self, effects: list[Effect], *, is_polite: bool = False) -> None:
        for effect in effects:
            match effect:
                case SendFrame(pieces):
                    if self._connection is not None:
                        self._connection.send(pieces)
                case Deliver(ticket, response):
                    self._deliver(ticket, response)
                case Fail(ticket, error):
                    self._hearers.pop(ticket, None)
                    future = self._futures.pop(ticket)
                    if not future.done():
                        future.set_exception(error)
                case Close():
                    self._hang_up(is_polite=is_polite)
        self._set_timer()

    def _deliver(self, ticket: int, response: Any) -> None:
        hear, future = self._hearers.pop(ticket, None), self._futures.pop(ticket)
        if future.done():
            return
        try:
            future.set_result(response if hear is None else hear(response))
        except Exception as error:  # the asker's own failure, so it is the asker who hears of it
            future.set_exception(error)

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
