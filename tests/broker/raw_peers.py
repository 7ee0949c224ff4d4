"""Peers that send arbitrary bytes."""

import asyncio

from broker_scene import BROKER, FRAME_BYTES_MAX, Scene

from moldau.model.ports import Connection


class Peer:
    """A connection that keeps the received bytes."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_lost = asyncio.Event()
        self.connection: Connection

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None:  # noqa: ARG002
        self.is_lost.set()


async def raw_peer(scene: Scene, host: str = "client") -> Peer:
    peer = Peer()
    try:
        await scene.simulation.network.host(host).connect(BROKER, peer, FRAME_BYTES_MAX)
    except ConnectionResetError:  # closed before the connection was established
        peer.is_lost.set()
    return peer
