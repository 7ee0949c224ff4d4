"""A decision while it is being made: records, answers and timers are added where they arise."""

from collections.abc import Hashable
from typing import Any, NamedTuple

from moldau.machines.decision import CancelTimer, Decision, Now, SetTimer, Ticket
from moldau.machines.groups.records import Record
from moldau.machines.groups.settings import GroupSettings

__all__ = ["Asker", "Draft", "Now"]


class Asker(NamedTuple):
    """Who sends a request: what its connection knows, and the request's version."""

    client_id: str
    client_host: str
    api_version: int


class Draft:
    """What one decision will consist of, and what it is based on."""

    __slots__ = ("now", "records", "responses", "settings", "timers")

    def __init__(self, now: Now, settings: GroupSettings) -> None:
        self.now = now
        self.settings = settings
        self.records: list[Record] = []
        self.responses: dict[Ticket, Any] = {}
        self.timers: list[SetTimer | CancelTimer] = []

    def answer(self, ticket: Ticket | None, answer: Any) -> None:
        """A request that waits, if there is one, gets its answer with this decision."""
        if ticket is not None:
            self.responses[ticket] = answer

    def set_timer(self, event: Hashable, delay_ms: float) -> None:
        self.timers.append(SetTimer(event, delay_ms))

    def cancel_timer(self, event: Hashable) -> None:
        self.timers.append(CancelTimer(event))

    def decision(self) -> Decision[Record, Any]:
        return Decision(self.records, self.responses, self.timers)
