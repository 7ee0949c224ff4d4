"""Who has been heard of lately. Soft state of the active controller: its successor grants everybody a session anew."""

from collections.abc import Iterable
from dataclasses import dataclass

from moldau.machines.decision import SetTimer


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The time of a broker that has not been heard of is up, unless it was heard of meanwhile."""

    broker_id: int


@dataclass(slots=True)
class Session:
    """One broker's. Its timer is not moved by heartbeats: it looks, when it is due, how long there is still to go."""

    epoch: int
    heard_ms: float
    is_confirmed: bool = False  # heard of by this controller, not granted by its election
    is_prolonged: bool = False  # because the controller came too late to end it in time


class Sessions:
    """The sessions of all brokers that are unfenced or heard of."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}

    def grant(self, brokers: Iterable[tuple[int, int]], now_ms: float, timeout_ms: float) -> list[SetTimer]:
        """A session in full for each broker and epoch: whoever is dead is found out, and nobody else is troubled."""
        timers = []
        for broker_id, epoch in brokers:
            self._sessions[broker_id] = Session(epoch, now_ms)
            timers.append(SetTimer(SessionEnded(broker_id), timeout_ms))
        return timers

    def hear(self, broker_id: int, epoch: int, now_ms: float, timeout_ms: float) -> list[SetTimer]:
        """A heartbeat came; the timer to be set, if none runs yet."""
        session = self._sessions.get(broker_id)
        timers = [] if session is not None else [SetTimer(SessionEnded(broker_id), timeout_ms)]
        self._sessions[broker_id] = Session(epoch, now_ms, is_confirmed=True)
        return timers

    def remaining_ms(self, broker_id: int, now_ms: float, timeout_ms: float) -> float | None:
        """How long this broker's session lasts if nothing more is heard; None without one."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.heard_ms + timeout_ms - now_ms

    def count_from(self, broker_id: int, heard_ms: float) -> None:
        """As if the broker had been heard of then."""
        self._sessions[broker_id].heard_ms = heard_ms

    def prolong(self, broker_id: int, until_ms: float, timeout_ms: float) -> bool:
        """Once, until the broker is heard of again; False if that has been done."""
        session = self._sessions[broker_id]
        is_first, session.is_prolonged = not session.is_prolonged, True
        if is_first:
            session.heard_ms = until_ms - timeout_ms
        return is_first

    def epoch(self, broker_id: int) -> int:
        return self._sessions[broker_id].epoch

    def is_alive(self, broker_id: int, epoch: int) -> bool:
        """Whether this life of the broker was heard of by this controller, and its session lasts."""
        session = self._sessions.get(broker_id)
        return session is not None and session.epoch == epoch and session.is_confirmed

    def end(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)
