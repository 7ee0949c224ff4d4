"""The quota of metadata changes that a request's client has, as decisions see it (KIP-599)."""

from typing import Protocol


class MutationQuota(Protocol):
    """Soft state of the active controller, which decisions charge."""

    def record(self, partitions: int) -> None:
        """Charge partitions that are created or deleted, or raise `ThrottlingQuotaExceeded`."""
        ...


class UnlimitedMutations:
    """Without a quota, every change is accepted."""

    def record(self, partitions: int) -> None:
        """Charge nothing."""


UNLIMITED = UnlimitedMutations()
