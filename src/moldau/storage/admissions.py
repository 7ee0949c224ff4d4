"""Who may begin a transaction in a partition: nobody, before the transaction's coordinator was heard.

A producer's first batch waits until the coordinator has said that this partition is part of its transaction. The
transaction may end meanwhile, and its marker be written: then the word of the coordinator is out of date, and the batch
must not be taken. So the marker withdraws the admission, and a later wish is another one.
"""

from dataclasses import dataclass
from typing import Final

from moldau.model.ids import NO_SEQUENCE

ADMISSIONS_MAX: Final = 20_000  # per partition; beyond it the oldest is withdrawn


@dataclass(slots=True, eq=False)
class Admission:
    """One producer's wish to begin a transaction. Only the very one that was granted counts, not another like it."""

    epoch: int
    lowest_sequence: int  # of all batches that wait for it: the first to be taken
    since_ms: int
    is_granted: bool = False


class Admissions:
    """The wishes of one partition's producers."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, Admission] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def seek(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> Admission:
        """The wish that this batch waits for; batches of one transaction share it."""
        admission = self._by_id.get(producer_id)
        if admission is not None and epoch < admission.epoch:
            return Admission(epoch, sequence, now_ms)  # of a zombie: it is asked about, and never granted
        if admission is None or admission.epoch != epoch:
            self.withdraw(producer_id)
            if len(self._by_id) >= ADMISSIONS_MAX:
                del self._by_id[next(iter(self._by_id))]
            admission = self._by_id[producer_id] = Admission(epoch, sequence, now_ms)
        elif sequence != NO_SEQUENCE:
            admission.lowest_sequence = min(admission.lowest_sequence, sequence)
        return admission

    def grant(self, producer_id: int, admission: Admission) -> bool:
        """The coordinator agrees; False if a marker came meanwhile, so that it has to be asked again."""
        if self._by_id.get(producer_id) is not admission:
            return False
        admission.is_granted = True
        return True

    def refuse(self, producer_id: int, admission: Admission) -> None:
        """The coordinator does not agree: whatever the producer does next has nothing to do with it."""
        if self._by_id.get(producer_id) is admission:
            del self._by_id[producer_id]

    def granted(self, producer_id: int, epoch: int) -> Admission | None:
        admission = self._by_id.get(producer_id)
        return admission if admission is not None and admission.is_granted and admission.epoch == epoch else None

    def withdraw(self, producer_id: int) -> None:
        """The transaction has begun, or has ended: what comes next is to be asked for again."""
        self._by_id.pop(producer_id, None)

    def expire(self, horizon_ms: int) -> None:
        """Forget wishes of which nothing came."""
        for producer_id in [key for key, each in self._by_id.items() if each.since_ms <= horizon_ms]:
            del self._by_id[producer_id]

    def clear(self) -> None:
        self._by_id.clear()
