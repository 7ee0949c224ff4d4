"""Who may begin a transaction in a partition: nobody, before the transaction's coordinator was heard.

A producer's first batch waits until the coordinator has said that this partition is part of its transaction. The
transaction may end meanwhile, and its marker be written: then the word of the coordinator is out of date, and the batch
must not be taken. So the marker withdraws the admission, and a later wish is another one.
"""

from dataclasses import dataclass
from typing import Final

from moldau.model.ids import NO_SEQUENCE

VERIFICATIONS_MAX: Final = 20_000  # per partition; beyond it the oldest is withdrawn


@dataclass(slots=True, eq=False)
class VerificationEntry:
    """One producer's wish to begin a transaction. Only the very one that was granted counts, not another like it."""

    epoch: int
    lowest_sequence: int  # of all batches that wait for it: the first to be taken
    since_ms: int
    is_verified: bool = False


class VerificationEntries:
    """The wishes of one partition's producers."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, VerificationEntry] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def seek(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> VerificationEntry:
        """The wish that this batch waits for; batches of one transaction share it."""
        verification = self._by_id.get(producer_id)
        if verification is not None and epoch < verification.epoch:
            return VerificationEntry(epoch, sequence, now_ms)  # of a zombie: it is asked about, and never granted
        if verification is None or verification.epoch != epoch:
            self.discard(producer_id)
            if len(self._by_id) >= VERIFICATIONS_MAX:
                del self._by_id[next(iter(self._by_id))]
            verification = self._by_id[producer_id] = VerificationEntry(epoch, sequence, now_ms)
        elif sequence != NO_SEQUENCE:
            verification.lowest_sequence = min(verification.lowest_sequence, sequence)
        return verification

    def complete(self, producer_id: int, verification: VerificationEntry) -> bool:
        """The coordinator agrees; False if a marker came meanwhile, so that it has to be asked again."""
        if self._by_id.get(producer_id) is not verification:
            return False
        verification.is_verified = True
        return True

    def reject(self, producer_id: int, verification: VerificationEntry) -> None:
        """The coordinator does not agree: whatever the producer does next has nothing to do with it."""
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
        """The transaction has begun, or has ended: what comes next is to be asked for again."""
        self._by_id.pop(producer_id, None)

    def expire(self, horizon_ms: int) -> None:
        """Forget wishes of which nothing came."""
        for producer_id in [key for key, each in self._by_id.items() if each.since_ms <= horizon_ms]:
            del self._by_id[producer_id]

    def clear(self) -> None:
        self._by_id.clear()
