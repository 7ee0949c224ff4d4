"""Member ids assigned by the coordinator."""

from typing import Final

from moldau.model.ids import UUID_BYTES

_PREFIX_CHARACTERS_MAX: Final = 8_000  # up to four bytes each; a string of the protocol has at most 32,767 bytes


def member_id_from(prefix: str, randomness: bytes) -> str:
    """Return a unique id: the client's or instance's name and a random (version 4) UUID."""
    raw = bytearray(randomness[:UUID_BYTES])
    if len(raw) != UUID_BYTES:
        raise ValueError("a member id takes 16 random bytes")
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return (
        f"{prefix[:_PREFIX_CHARACTERS_MAX]}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    )
