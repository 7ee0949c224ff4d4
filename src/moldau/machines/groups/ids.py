"""Ids that a coordinator gives to members."""

from typing import Final

from moldau.model.ids import UUID_BYTES

_PREFIX_CHARACTERS_MAX: Final = 8_000  # of up to four bytes each; a text of the protocol has 32,767 at most


def member_id_from(prefix: str, randomness: bytes) -> str:
    """An id that nobody else has: the client's or instance's name, and a random (version 4) UUID."""
    raw = bytearray(randomness[:UUID_BYTES])
    if len(raw) != UUID_BYTES:
        raise ValueError("a member id takes 16 random bytes")
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return (
        f"{prefix[:_PREFIX_CHARACTERS_MAX]}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    )
