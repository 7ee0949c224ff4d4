"""A history as attempts: each invocation with its completion, its sends and its polls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moldau_dev.history.operations import Kind, Operation, Read, Reads, Value

NEVER: Final = 1 << 62  # the index of a missing completion


class Unreadable(ValueError):
    """Not a valid history: a completion without invocation, or a value written twice."""


@dataclass(slots=True)
class Send:
    """One record sent to a key. The offset is known only if the response had it."""

    key: str
    value: Value
    offset: int | None = None


@dataclass(slots=True)
class Attempt:
    """An operation from its invocation to its completion. Without completion the outcome is unknown: `INFO`."""

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
    """Load the attempts of a history file; ignore a last line torn by a crash."""
    lines = Path(path).read_text().splitlines()
    operations = [Operation.parse(line) for line in lines[:-1]]
    if lines and lines[-1].endswith("}"):
        operations.append(Operation.parse(lines[-1]))
    return pair(operations)


def pair(operations: Iterable[Operation]) -> list[Attempt]:
    """Match completions with invocations: sends by value, other operations by process."""
    attempts: list[Attempt] = []
    open_attempts: dict[tuple[str, ...], Attempt] = {}
    sent: dict[tuple[str, Value], None] = {}
    for operation in operations:
        identity = _identity(operation)
        if operation.kind is Kind.INVOKE:
            if identity in open_attempts:
                raise Unreadable(f"line {operation.index}: {operation.process} already has this operation open")
            attempt = Attempt(operation.process, operation.f, operation.index, operation.value)
            _set_parts(attempt, operation.value)
            _reject_repeated(attempt, sent)
            open_attempts[identity] = attempt
            attempts.append(attempt)
        else:
            _complete(open_attempts.pop(identity, None), operation)
    return attempts


def _identity(operation: Operation) -> tuple[str, ...]:
    if operation.f == "send":
        return (operation.process, "send", operation.value["key"], repr(operation.value["value"]))
    return (operation.process, operation.f)


def _complete(attempt: Attempt | None, operation: Operation) -> None:
    if attempt is None:
        raise Unreadable(f"line {operation.index}: {operation.process} completes an operation that it did not invoke")
    attempt.kind, attempt.completed = operation.kind, operation.index
    if operation.kind is not Kind.FAIL and operation.value is not None:
        attempt.value = operation.value
        _set_parts(attempt, operation.value)


def _set_parts(attempt: Attempt, value: Any) -> None:
    """Set the sends and polls of an operation, as far as known."""
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
    """Return the offset, or None if it is unknown: the response to a duplicate may lack it."""
    return offset if offset is not None and offset >= 0 else None


def _reads(value: dict[str, list[list[Any]]]) -> Reads:
    return {key: [(offset, read) for offset, read in reads] for key, reads in value.items()}


def _reject_repeated(attempt: Attempt, sent: dict[tuple[str, Value], None]) -> None:
    for send in attempt.sends:
        if (send.key, send.value) in sent:
            raise Unreadable(f"{send.value!r} is sent to {send.key} twice, so duplicates cannot be detected")
        sent[send.key, send.value] = None
