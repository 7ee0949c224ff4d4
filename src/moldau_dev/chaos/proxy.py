"""A proxy in front of a broker that holds requests of some kinds back, and delivers them even after the client left."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

FRAME_BYTES_MAX: Final = 100 << 20
READY_S_MAX: Final = 10.0


class HoldingProxy:
    """Listens on a port of its own and passes frames on, in order. All methods may be called from any thread."""

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        self.port = listen_port
        self.held = 0  # how many requests were held back so far
        self.delivered_late = 0  # of those, how many reached the broker after their client had gone
        self._upstream = (host, port)
        self._hold_s: dict[int, float] = {}
        self._awaited: deque[int] = deque()  # kinds of which the next request is kept
        self._let_go = asyncio.Event()
        self._is_ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def start(self) -> "HoldingProxy":
        self._thread.start()
        if not self._is_ready.wait(READY_S_MAX):
            raise OSError("the proxy does not listen")
        return self

    def hold(self, api_keys: Iterable[int], seconds: float) -> None:
        """From now on, requests of these kinds wait so long before they go on."""
        self._hold_s = dict.fromkeys(api_keys, seconds)

    def hold_next(self, api_key: int) -> None:
        """The next request of this kind waits until `let_go`; those after it pass, on other connections."""
        self._awaited.append(api_key)

    def let_go(self) -> None:
        """What `hold_next` keeps goes on now."""
        self._awaited.clear()
        self._loop.call_soon_threadsafe(self._deliver)

    def release(self) -> None:
        """New requests pass at once; those that are held wait out their time."""
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
        answers = self._loop.create_task(self._pass_answers(upstream_reader, writer))
        try:
            await self._pass_requests(reader, writer, upstream_writer)
        finally:
            upstream_writer.close()
            answers.cancel()
            writer.close()

    async def _pass_requests(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, upstream: asyncio.StreamWriter
    ) -> None:
        """Frame by frame. What was taken from the client is delivered, though the client may have gone meanwhile."""
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
        """As long as was asked for requests of this kind; says whether that was at all."""
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

    async def _pass_answers(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while part := await upstream.read(65_536):
                writer.write(part)
                await writer.drain()
        writer.close()
