"""Other protocols sent to a Kafka port by mistake: their first four bytes parse as an absurd frame length."""

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


def describe_invalid_length(length: int, frame_bytes_max: int) -> str:
    """Describe, for the log, why a frame of this length is rejected."""
    first = (length & 0xFFFFFFFF).to_bytes(4, "big")
    for start, name in _STARTS:
        if first.startswith(start):
            return f"not a Kafka client: the first bytes {first!r} look like {name}"
    return f"frame of {length} bytes exceeds the limit of {frame_bytes_max} (socket.request.max.bytes)"
