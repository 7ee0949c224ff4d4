"""What the machines of replication want done."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, eq=False)
class ProposeIsr:
    """Ask the controller for this ISR with AlterPartition, again and again until it answers.

    Whatever comes back is given to the machine with this very object: it knows by it what is out of date.
    """

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]  # of each member of `isr` in turn; -1 where the leader does not know it
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Drop everything at `end_offset` and above, before the next fetch is sent."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop the whole log and begin an empty one at `start_offset`, before the next fetch is sent."""

    start_offset: int


Cut: TypeAlias = TruncateTo | RestartAt
