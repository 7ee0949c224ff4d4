"""Settings for the sockets of clients."""

from dataclasses import dataclass

from moldau.model.ports import SYSTEM_BUFFER
from moldau.model.settings import Kind, setting
from moldau.model.units import KiB


@dataclass(frozen=True, kw_only=True)
class SocketSettings:
    """The buffers of the kernel for each connection."""

    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes",
        100 * KiB,
        kind=Kind.INT,
        at_least=SYSTEM_BUFFER,
        doc="The SO_SNDBUF of client connections; -1 lets the kernel choose and adjust it.",
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        SYSTEM_BUFFER,
        kind=Kind.INT,
        at_least=SYSTEM_BUFFER,
        doc="The SO_RCVBUF of client connections; -1 lets the kernel choose and adjust it. Kafka's default is 102400.",
    )
