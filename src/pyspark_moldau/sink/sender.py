"""What a publisher wants of whoever sends its records, and what may become of them."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class DeliveryFailed(RuntimeError):
    """A record was refused, or nobody took it in time."""


class ProducerFenced(RuntimeError):
    """Somebody else has taken the transactional id over."""


class CommitRejected(RuntimeError):
    """The transaction is not committed and will not be: it wants to be aborted."""


class TransactionalSender(Protocol):
    """One transaction after the other, under one transactional id. Any other error of `commit` leaves a doubt."""

    def initialise(self) -> None:
        """Shut out all others who had the transactional id; what they have left open has ended afterwards."""

    def begin(self) -> None: ...

    def produce(self, batches: Iterable[Any], after_batch: Callable[[], None]) -> int:
        """Hand over what was staged; how many records it is. They are on their way when this returns."""

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """The same for one record."""

    def flush(self, seconds_max: float) -> None:
        """Wait until all of it was taken; DeliveryFailed if that fails."""

    def commit(self, seconds_max: float) -> None: ...

    def abort(self, seconds_max: float) -> None: ...

    def close(self) -> None:
        """Let go of connections; what is open stays open."""
