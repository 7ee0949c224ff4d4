"""The interface between the commit protocol and the producers that send its records."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class DeliveryFailed(RuntimeError):
    """A record was rejected or not acknowledged in time."""


class ProducerFenced(RuntimeError):
    """Another producer has taken over the transactional id."""


class CommitRejected(RuntimeError):
    """The transaction was not committed and must be aborted."""


class TransactionalSender(Protocol):
    """Consecutive transactions of one transactional id. Any other error of `commit` means an unknown outcome."""

    def initialise(self) -> None:
        """Fence earlier producers with the transactional id and abort their open transaction."""

    def begin(self) -> None: ...

    def produce(self, batches: Iterable[Any], after_batch: Callable[[], None]) -> int:
        """Enqueue staged batches and return the number of records; delivery continues in the background."""

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Enqueue one record."""

    def flush(self, seconds_max: float) -> None:
        """Wait until all records are acknowledged; raises DeliveryFailed."""

    def commit(self, seconds_max: float) -> None: ...

    def abort(self, seconds_max: float) -> None: ...

    def close(self) -> None:
        """Close connections without ending an open transaction."""
