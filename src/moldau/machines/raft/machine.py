"""The raft machine of one node: events go in, effects come out (KIP-595, 853, 996)."""

from collections.abc import Callable
from math import inf

from moldau.machines.raft.describe import QuorumDescription
from moldau.machines.raft.effects import Effect, Leadership
from moldau.machines.raft.events import Event
from moldau.machines.raft.log_view import LogView
from moldau.machines.raft.roles import RoleName
from moldau.machines.raft.settings import QuorumSettings
from moldau.machines.raft.voters import Voter, VoterSet


class RaftMachine:
    """Who leads the metadata quorum, and how far its log is committed. `step` with `Started` first."""

    def __init__(
        self,
        me: Voter,
        log: LogView,
        settings: QuorumSettings,
        randomness: Callable[[], float],
        *,
        static_voters: VoterSet | None = None,
    ) -> None:
        """`me` with the endpoints of this node's controller listener (none for a broker); `randomness` draws from
        [0, 1); `static_voters` are those of `controller.quorum.voters`, used until a voters record is found."""
        raise NotImplementedError

    def step(self, event: Event, now_ms: float) -> list[Effect]:
        """Take one event at a time of the monotonic clock that never goes back."""
        raise NotImplementedError

    @property
    def deadline_ms(self) -> float:
        """When the machine next wants `TimedOut`; changes with every step. Never: `inf`."""
        return inf

    @property
    def epoch(self) -> int:
        raise NotImplementedError

    @property
    def leadership(self) -> Leadership:
        """Who leads, with the endpoints as far as they are known. A leader that has resigned is not known."""
        raise NotImplementedError

    @property
    def role(self) -> RoleName:
        raise NotImplementedError

    @property
    def is_leader(self) -> bool:
        raise NotImplementedError

    @property
    def high_watermark(self) -> int:
        raise NotImplementedError

    @property
    def voters(self) -> VoterSet:
        """The latest set in the log, committed or not."""
        raise NotImplementedError

    @property
    def is_voter(self) -> bool:
        raise NotImplementedError

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """The set that a snapshot of everything below `end_offset` holds; None in a static quorum."""
        raise NotImplementedError

    def describe(self, now_ms: float) -> QuorumDescription:
        raise NotImplementedError
