"""A history read back: each invocation beside what came of it, and the sends and polls that it consisted of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moldau_dev.history.operations import Kind, Operation, Read, Reads, Value

NEVER: Final = 1 << 62  # the index of a completion that did not come


class Unreadable(ValueError):
    """This is not a history: a completion without its invocation, or a value written twice."""


@dataclass(slots=True)
class Send:
    """One record on its way to one key. The offset is known only if it was told."""

    key: str
    value: Value
    offset: int | None = None


@dataclass(slots=True)
class Attempt:
    """An operation from its invocation to its completion. Without one, nobody knows: `INFO`."""

    process: str
    f: str
    invoked: int
    value: Any
    kind: Kind = Kind.INFO
    completed: int = NEVER
    sends: list[Send] = field(default_factory=list)
    polls: list[Reads] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return self.kind is Kind.OK

    def reads(self) -> Iterator[tuple[str, Read]]:
        for poll in self.polls:
            for key, reads in poll.items():
                for read in reads:
                    yield key, read


def load(path: Path | str) -> list[Attempt]:
    """The attempts of a history file. A last line that was torn by a crash is passed over."""
    lines = Path(path).read_text().splitlines()
    operations = [Operation.parse(line) for line in lines[:-1]]
    if lines and lines[-1].endswith("}"):
        operations.append(Operation.parse(lines[-1]))
    return pair(operations)


def pair(operations: Iterable[Operation]) -> list[Attempt]:
    """Completions find their invocations: sends by what is sent, all else by process, one at a time."""
    attempts: list[Attempt] = []
    open_attempts: dict[tuple[str, ...], Attempt] = {}
    sent: dict[tuple[str, Value], None] = {}
    for operation in operations:
        ticket = _ticket(operation)
        if operation.kind is Kind.INVOKE:
            if ticket in open_attempts:
                raise Unreadable(f"line {operation.index}: {operation.process} has this under way already")
            attempt = Attempt(operation.process, operation.f, operation.index, operation.value)
            _take_parts(attempt, operation.value)
            _refuse_repeated(attempt, sent)
            open_attempts[ticket] = attempt
            attempts.append(attempt)
        else:
            _complete(open_attempts.pop(ticket, None), operation)
    return attempts


def _ticket(operation: Operation) -> tuple[str, ...]:
    if operation.f == "send":
        return (operation.process, "send", operation.value["key"], repr(operation.value["value"]))
    return (operation.process, operation.f)


def _complete(attempt: Attempt | None, operation: Operation) -> None:
    if attempt is None:
        raise Unreadable(f"line {operation.index}: {operation.process} completes what it never began")
    attempt.kind, attempt.completed = operation.kind, operation.index
    if operation.kind is not Kind.FAIL and operation.value is not None:
        attempt.value = operation.value
        _take_parts(attempt, operation.value)


def _take_parts(attempt: Attempt, value: Any) -> None:
    """The sends and polls of an operation, as far as they are known yet."""
    if attempt.f == "send":
        attempt.sends = [Send(value["key"], value["value"], _known(value.get("offset")))]
    elif attempt.f == "poll":
        attempt.polls = [_reads(value or {})]
    elif attempt.f == "txn":
        attempt.sends = [_send(step) for step in value if step[0] == "send"]
        attempt.polls = [_reads(step[1]) for step in value if step[0] == "poll" and len(step) > 1]


def _send(step: list[Any]) -> Send:
    _, key, sent = step
    return Send(key, sent[1], _known(sent[0])) if isinstance(sent, list) else Send(key, sent)


def _known(offset: int | None) -> int | None:
    """A client whose retry was answered as a duplicate may not have been told the offset."""
    return offset if offset is not None and offset >= 0 else None


def _reads(value: dict[str, list[list[Any]]]) -> Reads:
    return {key: [(offset, read) for offset, read in reads] for key, reads in value.items()}


def _refuse_repeated(attempt: Attempt, sent: dict[tuple[str, Value], None]) -> None:
    for send in attempt.sends:
        if (send.key, send.value) in sent:
            raise Unreadable(f"{send.value!r} is sent to {send.key} twice, so nobody can tell a duplicate")
        sent[send.key, send.value] = None
