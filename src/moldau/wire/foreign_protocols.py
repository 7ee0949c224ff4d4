"""What else is sent to a Kafka port by mistake: its first four bytes, read as a frame's length, are absurd."""

from typing import Final

_STARTS: Final = (
    (b"GET ", "HTTP"),
    (b"POST", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"OPTI", "HTTP"),
    (b"DELE", "HTTP"),
    (b"CONN", "HTTP"),
    (b"PRI ", "HTTP/2"),
    (b"SSH-", "SSH"),
    (b"\x16\x03", "TLS, and this listener is plain text (security.protocol of the client is SSL or SASL_SSL?)"),
)


def refused_length(length: int, frame_bytes_max: int) -> str:
    """Why a frame of this length is not taken, for a person to read."""
    first = (length & 0xFFFFFFFF).to_bytes(4, "big")
    for start, name in _STARTS:
        if first.startswith(start):
            return f"it does not speak Kafka's protocol: it begins with {first!r}, which looks like {name}"
    return f"a frame of {length} bytes; at most {frame_bytes_max} are accepted here (socket.request.max.bytes)"
