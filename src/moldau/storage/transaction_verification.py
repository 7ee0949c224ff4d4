"""Transaction verification (KIP-890): a partition accepts a transaction only after its coordinator confirmed it.

A producer's first batch waits until the coordinator confirms that this partition is part of the transaction. The
transaction may end meanwhile and its marker be written: then the confirmation is outdated and the batch must be
rejected. So the marker discards the verification entry, and a later request creates a new one.
"""

from dataclasses import dataclass
from typing import Final

from moldau.model.ids import NO_SEQUENCE

VERIFICATIONS_MAX: Final = 20_000  # per partition; beyond it the oldest is discarded


@dataclass(slots=True, eq=False)
class VerificationEntry:
    """A verification in progress or completed. Identity matters: an equal but newer entry is another one."""

    epoch: int
    lowest_sequence: int  # of all batches waiting for it: the first to be appended
    since_ms: int
    is_verified: bool = False


class VerificationEntries:
    """The verification entries of a partition's producers."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, VerificationEntry] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def seek(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> VerificationEntry:
        """Return the entry that this batch waits for; batches of a transaction share it."""
        verification = self._by_id.get(producer_id)
        if verification is not None and epoch < verification.epoch:
            return VerificationEntry(epoch, sequence, now_ms)  # of a zombie: verified, but never stored
        if verification is None or verification.epoch != epoch:
            self.discard(producer_id)
            if len(self._by_id) >= VERIFICATIONS_MAX:
                del self._by_id[next(iter(self._by_id))]
            verification = self._by_id[producer_id] = VerificationEntry(epoch, sequence, now_ms)
        elif sequence != NO_SEQUENCE:
            verification.lowest_sequence = min(verification.lowest_sequence, sequence)
        return verification

    def complete(self, producer_id: int, verification: VerificationEntry) -> bool:
        """Complete a verification; False if a marker was written meanwhile, so that it must be repeated."""
        if self._by_id.get(producer_id) is not verification:
            return False
        verification.is_verified = True
        return True

    def reject(self, producer_id: int, verification: VerificationEntry) -> None:
        """The coordinator rejected the transaction: discard the entry."""
        if self._by_id.get(producer_id) is verification:
            del self._by_id[producer_id]

    def verified(self, producer_id: int, epoch: int) -> VerificationEntry | None:
        verification = self._by_id.get(producer_id)
        return (
            verification
            if verification is not None and verification.is_verified and verification.epoch == epoch
            else None
        )

    def discard(self, producer_id: int) -> None:
        """The transaction has begun or ended: the next one must be verified again."""
        self._by_id.pop(producer_id, None)

    def expire(self, horizon_ms: int) -> None:
        """Expire unused entries."""
        for producer_id in [key for key, each in self._by_id.items() if each.since_ms <= horizon_ms]:
            del self._by_id[producer_id]

    def clear(self) -> None:
        self._by_id.clear()
