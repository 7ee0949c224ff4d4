"""Which partition a record goes to, by the same arithmetic as Kafka's own producers."""

from collections.abc import Callable, Sequence
from typing import Final

from moldau.model.ports import Random

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 with Kafka's seed, unsigned."""
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


def partition_of(key: bytes, partitions: int) -> int:
    """`hash(key) % partitions`; Kafka drops the sign bit rather than take the absolute value."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartition:
    """Records without a key fill one batch before the next partition is drawn: fewer, larger batches.

    `led` tells which partitions have a leader just now: while any has, no other is drawn.
    """

    def __init__(self, random: Random, partitions: int, led: Callable[[], Sequence[int]] | None = None) -> None:
        self._random = random
        self._partitions = partitions
        self._led = led or (lambda: range(partitions))
        self.current = random.randrange(0, partitions)
        self._prefer_led(self.current)

    def batch_left(self) -> None:
        """The batch of the current partition is on its way: draw another, not the same where there is a choice."""
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
