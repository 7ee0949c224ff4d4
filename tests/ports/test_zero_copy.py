"""Fetched bytes are sent from the file to the socket inside the kernel."""

import asyncio
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from moldau.model.ids import Address
from moldau.model.ports import Connection, FileSlice, Piece
from moldau.model.units import MiB
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.sockets import SocketNetwork

SLICE_BYTES = 3 * MiB


class FixedResponder:
    """Sends the same pieces for every frame."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self.has_ended = asyncio.Event()
        self._connection: Connection

    def connected(self, connection: Connection) -> None:
        self._connection = connection

    def frame_received(self, frame: memoryview) -> None:
        assert bytes(frame) == b"go"
        self._connection.send(self._pieces)

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None:
        assert not reason
        self.has_ended.set()


@pytest.mark.proves("S7")
@pytest.mark.skipif(not Capabilities.detect().has_sendfile, reason="this system has no sendfile")
async def test_file_slice_is_sent_with_sendfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "segment").write_bytes(os.urandom(SLICE_BYTES))
    file = SystemDisk(Capabilities.detect()).open(str(tmp_path / "segment"), read_only=True)
    responding = FixedResponder([b"head", FileSlice(file, 0, SLICE_BYTES)])
    sent: list[int] = []
    in_kernel = os.sendfile

    def counted(out: int, source: int, offset: int, count: int) -> int:
        taken = in_kernel(out, source, offset, count)
        sent.append(taken)
        return taken

    monkeypatch.setattr(os, "sendfile", counted)
    listener = await SocketNetwork().listen(Address("127.0.0.1", 0), lambda: responding, MiB)
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(struct.pack(">i", 2) + b"go")
    assert await reader.readexactly(4 + SLICE_BYTES) == b"head" + (tmp_path / "segment").read_bytes()
    assert sum(sent) == SLICE_BYTES
    writer.close()
    await responding.has_ended.wait()
    await listener.close()
    file.close()
