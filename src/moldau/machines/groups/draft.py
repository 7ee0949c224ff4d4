"""A decision under construction: records, responses and timers are added as they arise."""

from collections.abc import Hashable
from typing import Any, NamedTuple

from moldau.machines.decision import CancelTimer, Decision, Now, SetTimer, Ticket
from moldau.machines.groups.records import Record
from moldau.machines.groups.settings import GroupSettings

__all__ = ["Caller", "Draft", "Now"]


class Caller(NamedTuple):
    """The client of a request: from its connection, plus the request version."""

    client_id: str
    client_host: str
    api_version: int


class Draft:
    """Contents of a decision, with the time and settings it is based on."""

    __slots__ = ("effects", "now", "records", "responses", "settings", "timers")

    def __init__(self, now: Now, settings: GroupSettings) -> None:
        self.now = now
        self.settings = settings
        self.records: list[Record] = []
        self.responses: dict[Ticket, Any] = {}
        self.timers: list[SetTimer | CancelTimer] = []
        self.effects: list[object] = []

    def respond(self, ticket: Ticket | None, respond: Any) -> None:
        """Respond to a waiting request, if there is one, with this decision."""
        if ticket is not None:
            self.responses[ticket] = respond

    def set_timer(self, event: Hashable, delay_ms: float) -> None:
        self.timers.append(SetTimer(event, delay_ms))

    def cancel_timer(self, event: Hashable) -> None:
        self.timers.append(CancelTimer(event))

    def decision(self) -> Decision[Record, Any]:
        return Decision(self.records, self.responses, self.timers, self.effects)
