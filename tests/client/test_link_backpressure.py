"""A broker that accepts no more data fails its senders after a timeout."""

import asyncio
from typing import Any

import pytest

from moldau.client.errors import ResponseTimeout
from moldau.client.link import QUEUED_BYTES_MAX, Link
from moldau.client.settings import ClientSettings
from moldau.model.ids import Address
from moldau.testing.clock import SimulatedClock
from moldau.wire import framing, messages
from moldau_dev.simulation.loop import SimulatedLoop

pytestmark = pytest.mark.proves("P1", part="acks=0")


class StuckConnection:
    """Network and connection in one: it sends nothing."""

    def __init__(self) -> None:
        self.queued_bytes = QUEUED_BYTES_MAX + 1
        self.handler: Any = None
        self.is_aborted = False

    async def connect(self, _: Address, handler: Any, __: int, ___: None = None) -> None:
        self.handler = handler
        handler.connected(self)

    def send(self, pieces: Any) -> None:
        """Respond only to ApiVersions."""
        header, _ = framing.parse_request_header(memoryview(b"".join(bytes(each) for each in pieces))[4:])
        response: Any = framing.frame_response(
            header.api_key, header.api_version, header.correlation_id, messages.ApiVersionsResponse()
        )
        frame = memoryview(b"".join(bytes(each) for each in response))[4:]
        asyncio.get_running_loop().call_soon(self.handler.frame_received, frame)

    def abort(self) -> None:
        self.is_aborted = True
        self.handler.disconnected("we aborted it")


def run(act: Any) -> float:
    """Return the elapsed seconds."""
    loop = SimulatedLoop()
    full = StuckConnection()

    async def main() -> float:
        link = Link(Address("b1", 9092), SimulatedClock(loop.now_ms), ClientSettings(request_timeout_ms=2000))
        await link.open(full)  # type: ignore[arg-type]
        await act(link, full)
        return loop.time() - 1000

    return loop.run(main())


def test_broker_that_accepts_no_data_is_disconnected_after_the_timeout() -> None:
    async def act(link: Link, full: StuckConnection) -> None:
        with pytest.raises(ResponseTimeout, match="b1:9092 accepted no data for 2 s") as failed:
            await link.wait_for_room()
        assert not failed.value.was_sent
        assert link.is_closed
        assert full.is_aborted

    assert run(act) == pytest.approx(2.0)


def test_slow_broker_is_not_disconnected() -> None:
    async def act(link: Link, full: StuckConnection) -> None:
        waiting = asyncio.get_running_loop().create_task(link.wait_for_room())
        full.queued_bytes += 10
        for _ in range(5):
            await asyncio.sleep(1.5)
            assert not waiting.done()
            full.queued_bytes -= 1
        full.queued_bytes = 0
        link.drained()
        await waiting

    assert run(act) == pytest.approx(7.5)
