"""Output effects of the replication machines."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, eq=False)
class ProposeIsr:
    """Send AlterPartition with this ISR; retry until the controller responds.

    The driver returns the outcome to the machine with this same object, which identifies outdated outcomes.
    """

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]  # of each member of `isr`; -1 if unknown to the leader
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the log to `end_offset` before the next fetch."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Delete the whole log and start an empty one at `start_offset` before the next fetch."""

    start_offset: int


Truncation: TypeAlias = TruncateTo | RestartAt
