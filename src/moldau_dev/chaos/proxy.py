"""A proxy in front of a broker that delays requests of some APIs, and delivers them even after the client has left."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

FRAME_BYTES_MAX: Final = 100 << 20
READY_S_MAX: Final = 10.0


class HoldingProxy:
    """Listens on its own port and forwards frames in order. All methods are thread-safe."""

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        self.port = listen_port
        self.held = 0  # number of delayed requests
        self.delivered_late = 0  # of those, delivered after the client had left
        self._upstream = (host, port)
        self._hold_s: dict[int, float] = {}
        self._awaited: deque[int] = deque()  # APIs of which the next request is held
        self._let_go = asyncio.Event()
        self._is_ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def start(self) -> "HoldingProxy":
        self._thread.start()
        if not self._is_ready.wait(READY_S_MAX):
            raise OSError("the proxy could not listen")
        return self

    def hold(self, api_keys: Iterable[int], seconds: float) -> None:
        """Delay requests of these APIs from now on."""
        self._hold_s = dict.fromkeys(api_keys, seconds)

    def hold_next(self, api_key: int) -> None:
        """Hold the next request of this API until `deliver_held`; later ones pass on other connections."""
        self._awaited.append(api_key)

    def deliver_held(self) -> None:
        """Forward the requests held by `hold_next`."""
        self._awaited.clear()
        self._loop.call_soon_threadsafe(self._deliver)

    def release(self) -> None:
        """Stop delaying new requests; delayed ones wait for their time."""
        self._hold_s = {}

    def _deliver(self) -> None:
        self._let_go.set()
        self._let_go = asyncio.Event()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(READY_S_MAX)

    def __enter__(self) -> "HoldingProxy":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.close()
            return
        responses = self._loop.create_task(self._forward_responses(upstream_reader, writer))
        try:
            await self._forward_requests(reader, writer, upstream_writer)
        finally:
            upstream_writer.close()
            responses.cancel()
            writer.close()

    async def _forward_requests(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, upstream: asyncio.StreamWriter
    ) -> None:
        """Forward requests frame by frame, even if the client has left meanwhile."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                prefix = await reader.readexactly(4)
                length = int.from_bytes(prefix, "big")
                if not 4 <= length <= FRAME_BYTES_MAX:
                    return
                frame = await reader.readexactly(length)
                if await self._hold(int.from_bytes(frame[:2], "big")):
                    self.delivered_late += reader.at_eof() or client.is_closing()
                upstream.write(prefix + frame)
                await upstream.drain()

    async def _hold(self, api_key: int) -> bool:
        """Delay a request as configured for its API; return whether it was delayed."""
        wait_s = self._hold_s.get(api_key, 0.0)
        is_awaited = api_key in self._awaited
        if is_awaited:
            self._awaited.remove(api_key)
        self.held += is_awaited or wait_s > 0
        if is_awaited:
            await self._let_go.wait()
        elif wait_s:
            await asyncio.sleep(wait_s)
        return is_awaited or wait_s > 0

    async def _forward_responses(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while part := await upstream.read(65_536):
                writer.write(part)
                await writer.drain()
        writer.close()
