"""The newest offset of each key in the dirty part of a log, with bounded memory."""

from hashlib import blake2b
from typing import Final

KEYS_MAX: Final = 640_000  # about 128 MiB, Kafka's default for its cleaner
_WHOLE_KEY_BYTES_MAX: Final = 32
_DIGEST_BYTES: Final = 33  # longer than any verbatim key, so the two cannot collide


class OffsetMap:
    """Newest offset by key. Long keys are stored as digests."""

    __slots__ = ("_keys_max", "_offsets", "end_offset")

    def __init__(self, start_offset: int, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}
        self.end_offset = start_offset  # every key below is included

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self._keys_max

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[_hashed(key)] = offset

    def is_newest(self, key: bytes, offset: int) -> bool:
        return offset >= self._offsets.get(_hashed(key), -1)


def _hashed(key: bytes) -> bytes:
    return key if len(key) <= _WHOLE_KEY_BYTES_MAX else blake2b(key, digest_size=_DIGEST_BYTES).digest()
