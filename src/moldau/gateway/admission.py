"""Bounds on the work that is accepted at a time: beyond them, requests get 429 and a time to wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from moldau.console.errors import ConsoleError
from moldau.model.units import MiB

PRODUCE_REQUESTS_MAX: Final = 256
PRODUCE_BYTES_MAX: Final = 64 * MiB
TAILS_MAX: Final = 64
RETRY_AFTER: Final = {"Retry-After": "1"}


@dataclass(slots=True)
class Admission:
    """The number and the bytes of produce requests in progress, and the number of live tails."""

    requests_max: int = PRODUCE_REQUESTS_MAX
    bytes_max: int = PRODUCE_BYTES_MAX
    tails_max: int = TAILS_MAX
    requests: int = 0
    bytes: int = 0
    tails: int = 0

    @contextmanager
    def produce(self, size: int) -> Iterator[None]:
        """Hold room for a request of this size; a single one always fits."""
        is_full = self.requests >= self.requests_max or self.bytes + size > self.bytes_max
        if is_full and self.requests:
            message = f"{self.requests} produce requests are in progress, which is the limit; try again later."
            raise ConsoleError(429, "too_many_requests", message, RETRY_AFTER)
        self.requests += 1
        self.bytes += size
        try:
            yield
        finally:
            self.requests -= 1
            self.bytes -= size

    def begin_tail(self) -> None:
        if self.tails >= self.tails_max:
            message = f"At most {self.tails_max} live tails run at a time; stop one of them."
            raise ConsoleError(429, "too_many_tails", message, RETRY_AFTER)
        self.tails += 1

    def end_tail(self) -> None:
        self.tails -= 1
