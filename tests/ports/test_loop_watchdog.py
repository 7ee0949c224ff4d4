"""A blocked event loop: its connections are closed, so that clients turn to other brokers."""

import asyncio
import socket
import threading

import pytest

from moldau.node.ports.loop_watchdog import LoopWatchdog, StallDetector, shut_down_connections

TIMEOUT_MS = 200.0
WAIT_S_MAX = 20.0


class TestStallDetector:
    @pytest.mark.proves("S11", part="clients go on with other brokers")
    def test_reports_a_stall_once(self) -> None:
        detector = StallDetector(checks=3)
        assert [detector.observe(7) for _ in range(6)] == [False, False, False, True, False, False]

    def test_counts_only_consecutive_checks(self) -> None:
        detector = StallDetector(checks=2)
        assert not any(detector.observe(ticks) for ticks in (1, 1, 2, 2, 3))
        assert [detector.observe(3) for _ in range(2)] == [False, True]

    def test_reports_the_next_stall(self) -> None:
        detector = StallDetector(checks=1)
        assert [detector.observe(ticks) for ticks in (1, 1, 2, 2)] == [False, True, False, True]


def connect() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


@pytest.mark.proves("S11", part="clients go on with other brokers")
def test_blocked_loop_loses_its_connections() -> None:
    client, accepted = connect()
    client.settimeout(WAIT_S_MAX)
    received: list[bytes] = []
    is_closed = threading.Event()

    def wait_for_end() -> None:
        received.append(client.recv(1))
        is_closed.set()

    reader = threading.Thread(target=wait_for_end)
    reader.start()

    async def block() -> None:
        watchdog = LoopWatchdog(TIMEOUT_MS)
        watchdog.start()
        await asyncio.sleep(0)
        assert is_closed.wait(WAIT_S_MAX)  # blocks the loop, as a write that hangs
        watchdog.stop()

    with client, accepted:
        asyncio.run(block())
        reader.join()
    assert received == [b""]


def test_loop_that_turns_keeps_its_connections() -> None:
    client, accepted = connect()

    async def turn() -> None:
        watchdog = LoopWatchdog(TIMEOUT_MS)
        watchdog.start()
        await asyncio.sleep(3 * TIMEOUT_MS / 1000)
        watchdog.stop()

    with client, accepted:
        asyncio.run(turn())
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"


def test_listening_sockets_stay_open() -> None:
    client, accepted = connect()
    with client, accepted, socket.create_server(("127.0.0.1", 0)) as server:
        assert shut_down_connections() >= 2
        with socket.create_connection(server.getsockname()) as later, server.accept()[0] as served:
            later.sendall(b"x")
            assert served.recv(1) == b"x"
