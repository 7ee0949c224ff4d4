"""What a replicated machine hands back: a `Decision`, and the protocol by which a driver runs any such machine."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, NewType, Protocol, TypeVar

from moldau.model.errors import KafkaError

Record = TypeVar("Record")
Answer = TypeVar("Answer")

Ticket = NewType("Ticket", int)
"""Names a request that waits for its answer, so that a later decision can give it (a join completes other joins)."""

ASKER: Final = Ticket(0)
"""The request whose decision this is. A decision without an answer for it leaves the request waiting."""


class Now(NamedTuple):
    """When something is decided: monotonic time for deadlines, wall time for what goes into records."""

    ms: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Hand `event` to `decide_timed_out` after `delay_ms`; a timer of an equal event is moved."""

    event: Hashable
    delay_ms: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer of this event, if there is one."""

    event: Hashable


@dataclass(frozen=True)  # with slots, Python 3.11 cannot call `Decision[Record, Answer](…)`
class Decision(Generic[Record, Answer]):
    """Everything that follows from one request; the fields say when each part takes place.

    An answer that is a `KafkaError` is raised to the request it belongs to.
    """

    records: Sequence[Record] = ()  # appended in one piece: after a crash all of them are there, or none
    answers: Mapping[Ticket, Answer | KafkaError] = field(default_factory=dict)  # given once the records are committed
    timers: Sequence[SetTimer | CancelTimer] = ()  # set at once: they are soft state, and what they decide waits anyway
    effects: Sequence[object] = ()  # performed in order once the records are committed


def answered(
    answer: Answer,
    records: Sequence[Record] = (),
    timers: Sequence[SetTimer | CancelTimer] = (),
    effects: Sequence[object] = (),
) -> Decision[Record, Answer]:
    """The usual decision: it answers the request that asked."""
    return Decision(records, {ASKER: answer}, timers, effects)


class ReplicatedMachine(Protocol[Record]):
    """What the generic driver asks of a machine. Its `decide_x` methods are called by those who know the machine."""

    def apply(self, record: Record, offset: int) -> None:
        """Change the replicated state; nothing else may. `offset` is where the record stands in the log."""
        ...

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        """The log is replayed and this machine speaks for it now: arm timers, finish what was left half done."""
        ...

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        """A timer that an earlier decision set is due."""
        ...
