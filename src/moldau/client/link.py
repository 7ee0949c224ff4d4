"""Runs the protocol of one connection: performs its effects, feeds it frames and time."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from moldau.client.connection import ClientConnection, Close, Deliver, Effect, Fail, Phase, SendFrame
from moldau.client.errors import ConnectionLost, ResponseTimeout
from moldau.client.settings import ClientSettings
from moldau.machines.access.exchange import Derive
from moldau.model.ids import Address
from moldau.model.ports import Clock, Connection, Network
from moldau.model.units import MiB
from moldau.wire.messages import Message, Request, Response

QUEUED_BYTES_MAX: Final = 16 * MiB  # beyond it, senders wait
CLOSE_S_MAX: Final = 5.0
NO_TICKET: Final = 0


class _Handler(NamedTuple):
    """Callbacks of a request. Exactly one of them is called, once."""

    on_response: Callable[[Any], None]
    on_error: Callable[[Exception], None]
    borrows: bool  # done with the buffers of the response when `on_response` returns
    read: Callable[[memoryview], Any] | None = None  # decodes a frame, or returns None to use the codec


class Link:
    """One connection to one broker. A closed link is not reopened."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        settings: ClientSettings,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """`on_lost` is called with the reason when an established connection is lost, but not when we close it."""
        self.address = address
        self._on_lost = on_lost
        self._clock = clock
        self._settings = settings
        self._client_id = (settings.client_id or "").encode()
        self._protocol = ClientConnection(str(address), settings, lambda: settings.security.authentication(address))
        self._connection: Connection | None = None
        self._handlers: dict[int, _Handler] = {}
        self._next_ticket = 0
        self._effects: deque[Effect] = deque()
        self._is_running = False
        self._is_graceful = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = math.inf
        self._deriving: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._drained = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._protocol.phase is Phase.CLOSED

    @property
    def is_idle(self) -> bool:
        """Whether no request is pending."""
        return self._protocol.is_idle

    @property
    def features(self) -> Mapping[str, int]:
        """The finalized features by name; empty until versions are negotiated."""
        return self._protocol.features

    async def open(self, network: Network, *, until_authenticated: bool = False) -> None:
        """Connect; `OSError` on failure or timeout. Requests submitted meanwhile are queued.

        With `until_authenticated`, a rejected authentication is such a failure too.
        """
        timeout_limit_ms = self._settings.connect_timeout_ms
        try:
            async with asyncio.timeout(timeout_limit_ms / 1000):
                await network.connect(self.address, self, self._settings.frame_bytes_max, self._settings.security.tls)
                if until_authenticated and self._settings.security.sasl is not None:
                    await self._wait_until_authenticated()
        except TimeoutError:
            self._drop("connection timed out")
            raise TimeoutError(f"connection timed out after {timeout_limit_ms / 1000:g} s") from None
        except BaseException as error:
            self._drop(str(error))
            raise

    async def _wait_until_authenticated(self) -> None:
        if self._protocol.phase is not Phase.READY:
            self._opened = asyncio.get_running_loop().create_future()
            if self.is_closed:
                raise ConnectionLost("the authentication was rejected", was_sent=False)
            await self._opened

    def send(
        self,
        request: Request[Response],
        *,
        timeout_ms: float | None = None,
        version_at_most: int | None = None,
        version_at_least: int = 0,
    ) -> asyncio.Future[Response]:
        """Send a request; return a future of its response. If it is cancelled, the response is dropped."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def on_response(response: Response) -> None:
            if not future.done():
                future.set_result(response)

        def on_error(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        self._submit(
            _Handler(on_response, on_error, borrows=False), request, timeout_ms, version_at_most, version_at_least
        )
        return future

    def send_borrowing(
        self,
        request: Request[Response],
        *,
        timeout_ms: float,
        on_response: Callable[[Response], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Send a request whose response is not copied.

        `on_response` is called synchronously, may use the buffers of the response until it returns, and may send
        requests. On failure `on_error` is called instead, possibly before this returns. Neither may raise.
        """
        self._submit(_Handler(on_response, on_error, borrows=True), request, timeout_ms, None)

    def try_send_raw(
        self,
        message: type[Any],
        versions: tuple[int, int],
        *,
        timeout_ms: float,
        write: Callable[[int, int, bytes], bytes],
        read: Callable[[memoryview], Any],
        on_response: Callable[[Any], None],
        on_error: Callable[[Exception], None],
    ) -> bool:
        """Send a request that its caller encodes and decodes, in one of `versions`. False if it cannot be sent now.

        `write` is called with version, correlation id and client id. `on_response` is called with the result of `read`,
        or with the decoded response of `message` if `read` returned None.
        """
        if self._effects or self._connection is None:
            return False
        ticket = self._next_ticket + 1
        numbers = self._protocol.try_put_in_flight(ticket, message, versions, self._now_ms(), timeout_ms)
        if numbers is None:
            return False
        self._next_ticket = ticket
        self._handlers[ticket] = _Handler(on_response, on_error, True, read)
        self._connection.send([write(*numbers, self._client_id)])
        if self._timer is None or self._protocol.wake_at_ms < self._timer_at_ms:
            self._set_timer()
        return True

    def _submit(
        self,
        handler: _Handler,
        request: Message,
        timeout_ms: float | None,
        version_at_most: int | None,
        version_at_least: int = 0,
    ) -> None:
        self._next_ticket += 1
        self._handlers[self._next_ticket] = handler
        self._run(
            self._protocol.submit(
                self._next_ticket,
                request,
                self._now_ms(),
                timeout_ms=timeout_ms,
                version_at_most=version_at_most,
                version_at_least=version_at_least,
            )
        )

    async def wait_for_room(self, timeout_ms: float | None = None) -> None:
        """Wait while too many bytes are queued; the only limit for requests without responses.

        A broker that accepts no bytes for the duration of a request timeout is disconnected.
        """
        timeout_limit_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        while self._connection is not None and self._connection.queued_bytes > QUEUED_BYTES_MAX:
            before_bytes = self._connection.queued_bytes
            self._drained.clear()
            try:
                async with asyncio.timeout(timeout_limit_ms / 1000):
                    await self._drained.wait()
            except TimeoutError:
                if self._connection is not None and self._connection.queued_bytes >= before_bytes:
                    message = f"{self.address} accepted no data for {timeout_limit_ms / 1000:g} s"
                    self._drop(message)
                    raise ResponseTimeout(message, was_sent=False) from None

    async def close(self) -> None:
        """Send the queued bytes, then close; pending requests fail."""
        self._is_graceful = True
        self._run(self._protocol.lost("closed by the client"))
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._closed.wait()
        except TimeoutError:
            self._close_connection()

    # Called by the connection

    def connected(self, connection: Connection) -> None:
        if self.is_closed:  # opening timed out
            connection.abort()
            return
        self._connection = connection
        self._run(self._protocol.opened(self._now_ms()))

    def frame_received(self, frame: memoryview) -> None:
        # The frame is borrowed: copy it once, and keep record batches as views of the copy.
        protocol = self._protocol
        ticket = protocol.next_ticket or NO_TICKET
        handler = self._handlers.get(ticket)
        if handler is not None and handler.read is not None:
            response = handler.read(frame)
            if response is not None and protocol.complete_raw(frame):
                del self._handlers[ticket]
                handler.on_response(response)
                if protocol.has_queued:
                    self._run(protocol.time_passed(self._now_ms()))
                return
        kept = frame if handler is not None and handler.borrows else memoryview(bytes(frame))
        self._run(self._protocol.received(kept, self._now_ms()))

    def drained(self) -> None:
        self._drained.set()

    def disconnected(self, reason: str) -> None:
        was_ours = self.is_closed
        self._connection = None
        self._closed.set()
        self._drained.set()
        self._run(self._protocol.lost(reason))
        if not was_ours and self._on_lost is not None:
            self._on_lost(reason or "closed by the broker")

    # Effects of the protocol

    def _run(self, effects: list[Effect]) -> None:
        """Perform effects in order, including those of requests that response callbacks send."""
        self._effects.extend(effects)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._is_running = False
        if self._opened is not None and self._protocol.phase is Phase.READY and not self._opened.done():
            self._opened.set_result(None)
        self._set_timer()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendFrame(pieces):
                if self._connection is not None:
                    self._connection.send(pieces)
            case Deliver(ticket, response):
                self._handlers.pop(ticket).on_response(response)
            case Fail(ticket, error):
                self._handlers.pop(ticket).on_error(error)
            case Derive():
                self._derive(effect)
            case Close(reason):
                if self._opened is not None and not self._opened.done():
                    self._opened.set_exception(ConnectionLost(reason, was_sent=False))
                self._close_connection(is_graceful=self._is_graceful)

    def _derive(self, derive: Derive) -> None:
        """Derive a key outside the event loop if there is an executor."""
        executor = self._settings.security.executor
        if executor is None:
            self._effects.extend(self._protocol.derived(_result_of(derive), self._now_ms()))
            return

        async def run() -> None:
            result = await executor.run(_result_of, derive)
            self._run(self._protocol.derived(result, self._now_ms()))

        self._deriving = asyncio.get_running_loop().create_task(run())

    def abort(self) -> None:
        """Close now and drop the queued bytes."""
        self._drop("closed by the client")

    def _drop(self, reason: str) -> None:
        self._run(self._protocol.lost(reason))
        self._close_connection()

    def _close_connection(self, *, is_graceful: bool = False) -> None:
        if self._connection is None:
            self._closed.set()
        elif is_graceful:
            self._connection.close()
        else:
            self._connection.abort()

    def _set_timer(self) -> None:
        """Keep one timer, rescheduled only to an earlier time; firing early is cheap."""
        wake_at_ms = self._protocol.wake_at_ms
        if self.is_closed or wake_at_ms < self._timer_at_ms:
            self._stop_timer()
        if self._timer is None and wake_at_ms != math.inf:
            delay_ms = max(0.0, wake_at_ms - self._now_ms())
            self._timer_at_ms = wake_at_ms
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = math.inf

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ms = math.inf
        self._run(self._protocol.time_passed(self._now_ms()))

    def _now_ms(self) -> float:
        return self._clock.monotonic_ms()


def _result_of(derive: Derive) -> Any:
    """Run the work; return its exception as the result, because it fails only the authentication."""
    try:
        return derive.work(*derive.arguments)
    except Exception as error:
        return error
