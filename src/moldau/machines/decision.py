"""`Decision`, the result of a replicated machine, and the protocol by which a driver runs such a machine."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, NewType, Protocol, TypeVar

from moldau.model.errors import KafkaError

Record = TypeVar("Record")
Response = TypeVar("Response")

Ticket = NewType("Ticket", int)
"""Correlates a waiting request with its response, so that a later decision can complete it (a join completes other
joins)."""

REQUESTER: Final = Ticket(0)
"""The request that this decision is for. A decision without a response for it leaves the request waiting."""


class Now(NamedTuple):
    """Time of a decision: monotonic time for deadlines, wall time for records."""

    ms: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `decide_timed_out` with `event` after `delay_ms`; replaces a timer of an equal event."""

    event: Hashable
    delay_ms: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel the timer of this event, if set."""

    event: Hashable


@dataclass(frozen=True)  # with slots, Python 3.11 cannot call `Decision[Record, Response](…)`
class Decision(Generic[Record, Response]):
    """Everything that follows from a request; each field documents when it takes effect.

    A response that is a `KafkaError` is raised to its request.
    """

    records: Sequence[Record] = ()  # appended atomically: all or none survive a crash
    responses: Mapping[Ticket, Response | KafkaError] = field(
        default_factory=dict
    )  # sent once the records are committed
    timers: Sequence[SetTimer | CancelTimer] = ()  # set at once: soft state whose decisions wait for commits anyway
    effects: Sequence[object] = ()  # performed in order once the records are committed


def respond(
    response: Response,
    records: Sequence[Record] = (),
    timers: Sequence[SetTimer | CancelTimer] = (),
    effects: Sequence[object] = (),
) -> Decision[Record, Response]:
    """Return the common decision: a response to the current request."""
    return Decision(records, {REQUESTER: response}, timers, effects)


class ReplicatedMachine(Protocol[Record]):
    """Methods called by the generic driver. Callers that know the machine call its `decide_x` methods."""

    def apply(self, record: Record, offset: int) -> None:
        """Change the replicated state; nothing else may. `offset` is the record's position in the log."""
        ...

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        """The log is replayed and this machine is now in charge of it: set timers, resume interrupted work."""
        ...

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        """A timer set by an earlier decision has expired."""
        ...
