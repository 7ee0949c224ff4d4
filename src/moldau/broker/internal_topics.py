"""The topics that belong to the broker itself, and which partition of one coordinates a key."""

from functools import lru_cache
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
STATE_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
SCHEDULE_STATE_TOPIC: Final = "__schedule_state"
INTERNAL: Final = frozenset({OFFSETS_TOPIC, STATE_TOPIC, SHARE_STATE_TOPIC, SCHEDULE_STATE_TOPIC})

CACHED_HASHES: Final = 1 << 16
CACHED_CHARACTERS_MAX: Final = 256  # an id may have a hundred times as many
_INT_BITS: Final = 0xFFFF_FFFF
_INT_MIN: Final = 0x8000_0000


def is_internal(topic: str) -> bool:
    return topic in INTERNAL


def partition_for(key: str, partitions: int) -> int:
    """Return the partition of a coordinator's topic that keeps a group or a transactional id."""
    return (_cached_hash(key) if len(key) <= CACHED_CHARACTERS_MAX else _hash(key)) % partitions


@lru_cache(CACHED_HASHES)
def _cached_hash(key: str) -> int:
    return _hash(key)


def _hash(key: str) -> int:
    """Return Java's hash of a string, made positive as Kafka does: its tools must find a key in the same partition."""
    hashed = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & _INT_BITS
    return 0 if hashed == _INT_MIN else hashed if hashed < _INT_MIN else _INT_BITS + 1 - hashed
