"""Partition of a record, computed like Kafka's producers do."""

from collections.abc import Callable, Sequence
from typing import Final

from moldau.model.ports import Random

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Compute the unsigned 32-bit MurmurHash2 with Kafka's seed."""
    length = len(data)
    digest = (_SEED ^ length) & _WORD
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = (word * _FACTOR) & _WORD
        word ^= word >> 24
        digest = ((digest * _FACTOR) & _WORD) ^ ((word * _FACTOR) & _WORD)
    if length > whole:
        digest = ((digest ^ int.from_bytes(data[whole:], "little")) * _FACTOR) & _WORD
    digest ^= digest >> 13
    digest = (digest * _FACTOR) & _WORD
    return digest ^ (digest >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return `hash(key) % partitions`; like Kafka, clear the sign bit instead of taking the absolute value."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitioner:
    """Fills one batch of keyless records before it switches partitions: fewer, larger batches.

    `led` returns the partitions with a leader; others are chosen only if there are none.
    """

    def __init__(self, random: Random, partitions: int, led: Callable[[], Sequence[int]] | None = None) -> None:
        self._random = random
        self._partitions = partitions
        self._led = led or (lambda: range(partitions))
        self.current = random.randrange(0, partitions)
        self._prefer_led(self.current)

    def on_batch_sent(self) -> None:
        """Switch to another partition, if there is one, after a batch was sent."""
        if self._partitions > 1:
            before = self.current
            step = self._random.randrange(1, self._partitions)
            self.current = (self.current + step) % self._partitions
            self._prefer_led(before)

    def _prefer_led(self, before: int) -> None:
        led = self._led()
        if led and self.current not in led:
            choice = [each for each in led if each != before] or led
            self.current = choice[self._random.randrange(0, len(choice))]
