"""Broker sessions. Soft state of the active controller: after a failover every broker gets a new session."""

from collections.abc import Iterable
from dataclasses import dataclass

from moldau.machines.decision import SetTimer


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A broker's session expired, unless a heartbeat arrived meanwhile."""

    broker_id: int


@dataclass(slots=True)
class Session:
    """A broker's session. Heartbeats do not move its timer: when due, the timer checks the remaining time."""

    epoch: int
    last_heartbeat_ms: float
    is_confirmed: bool = False  # by a heartbeat to this controller, not only granted at its election
    is_extended: bool = False  # because the controller stalled and could not receive heartbeats


class Sessions:
    """The sessions of all brokers that are unfenced or sent a heartbeat."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}

    def grant(self, brokers: Iterable[tuple[int, int]], now_ms: float, timeout_ms: float) -> list[SetTimer]:
        """Grant each broker and epoch a full session: dead brokers expire, live ones are unaffected."""
        timers = []
        for broker_id, epoch in brokers:
            self._sessions[broker_id] = Session(epoch, now_ms)
            timers.append(SetTimer(SessionEnded(broker_id), timeout_ms))
        return timers

    def record_heartbeat(self, broker_id: int, epoch: int, now_ms: float, timeout_ms: float) -> list[SetTimer]:
        """Record a heartbeat; returns the timer to set if none is running."""
        session = self._sessions.get(broker_id)
        timers = [] if session is not None else [SetTimer(SessionEnded(broker_id), timeout_ms)]
        self._sessions[broker_id] = Session(epoch, now_ms, is_confirmed=True)
        return timers

    def remaining_ms(self, broker_id: int, now_ms: float, timeout_ms: float) -> float | None:
        """Return the remaining session time; None without a session."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.last_heartbeat_ms + timeout_ms - now_ms

    def restart_from(self, broker_id: int, last_heartbeat_ms: float) -> None:
        """Restart the session as of `last_heartbeat_ms`."""
        self._sessions[broker_id].last_heartbeat_ms = last_heartbeat_ms

    def extend(self, broker_id: int, until_ms: float, timeout_ms: float) -> bool:
        """Extend the session once per heartbeat; returns False if already done."""
        session = self._sessions[broker_id]
        is_first, session.is_extended = not session.is_extended, True
        if is_first:
            session.last_heartbeat_ms = until_ms - timeout_ms
        return is_first

    def epoch(self, broker_id: int) -> int:
        return self._sessions[broker_id].epoch

    def is_alive(self, broker_id: int, epoch: int) -> bool:
        """Whether this broker epoch sent a heartbeat to this controller and its session is valid."""
        session = self._sessions.get(broker_id)
        return session is not None and session.epoch == epoch and session.is_confirmed

    def end(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)
