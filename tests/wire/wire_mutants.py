"""Mutated bytes from a seed, like those of line noise, bugs and attackers."""

import random
from collections.abc import Callable

HOSTILE_NUMBERS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x0f", b"\x80" * 6)


class Mutator:
    """Corrupts bytes like line noise, bugs and attackers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ways: list[Callable[[bytearray], None]] = [
            self.change_a_byte,
            self.change_a_byte,
            self.overwrite_with_a_hostile_number,
            self.insert_a_hostile_number,
            self.cut,
            self.repeat_a_part,
            self.append,
        ]

    def mutant(self, original: bytes) -> bytes:
        body = bytearray(original)
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            self.random.choice(self.ways)(body)
        return bytes(body)

    def change_a_byte(self, body: bytearray) -> None:
        if body:
            body[self.place(body)] = self.random.choice((0, 1, 0x7F, 0x80, 0xFF, self.random.randrange(256)))

    def overwrite_with_a_hostile_number(self, body: bytearray) -> None:
        number = self.random.choice(HOSTILE_NUMBERS)
        at = self.place(body)
        body[at : at + len(number)] = number

    def insert_a_hostile_number(self, body: bytearray) -> None:
        at = self.place(body)
        body[at:at] = self.random.choice(HOSTILE_NUMBERS)

    def cut(self, body: bytearray) -> None:
        del body[self.place(body) :]

    def repeat_a_part(self, body: bytearray) -> None:
        start, stop = sorted((self.place(body), self.place(body)))
        body[stop:stop] = body[start : min(stop, start + 100)]

    def append(self, body: bytearray) -> None:
        body += self.random.randbytes(self.random.randrange(1, 9))

    def place(self, body: bytearray) -> int:
        return int(self.random.random() * len(body))
