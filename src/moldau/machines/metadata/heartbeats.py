"""Brokers say that they are alive; the answer tells them whether they may serve, and whether they may stop."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.machines.decision import Decision, SetTimer, respond
from moldau.machines.metadata.brokers import check_broker_epoch, decide_fence_broker, evacuation, restoration
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import BrokerImage
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.sessions import SessionEnded, Sessions

LATE_MS: Final = 100.0  # a look that comes later than this shows that the controller itself stood still
UNREAD_MS: Final = 1_000.0  # in which it reads what was sent to it meanwhile


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    """What a broker says. `metadata_offset` is the last one whose record is in effect there."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shut_down: bool = False


class HeartbeatAnswer(NamedTuple):
    """What it is told."""

    is_caught_up: bool  # with its own registration
    is_fenced: bool
    should_shut_down: bool


def decide_broker_heartbeat(
    view: ClusterView, sessions: Sessions, heartbeat: BrokerHeartbeat, now_ms: float
) -> Decision[Record, HeartbeatAnswer]:
    """A fenced broker that has caught up with its registration takes up work; one that wants to stop gives it away."""
    broker = check_broker_epoch(view.image, heartbeat.broker_id, heartbeat.broker_epoch)
    timeout_ms = view.settings.broker_session_timeout_ms
    timers = sessions.hear(broker.broker_id, broker.epoch, now_ms, timeout_ms)
    is_caught_up = heartbeat.metadata_offset >= broker.epoch
    if heartbeat.wants_shut_down:
        return _shut_down(view, broker, is_caught_up, timers)
    if heartbeat.wants_fence:
        return _fence(view, broker, is_caught_up, timers)
    if not broker.is_fenced or not is_caught_up or broker.is_shutting_down:
        return respond(HeartbeatAnswer(is_caught_up, broker.is_fenced, should_shut_down=False), timers=timers)
    moves = restoration(view, broker)
    answer = HeartbeatAnswer(is_caught_up, is_fenced=False, should_shut_down=False)
    return respond(answer, moves.records, [*timers, *moves.timers])


def _fence(
    view: ClusterView, broker: BrokerImage, is_caught_up: bool, timers: list[SetTimer]
) -> Decision[Record, HeartbeatAnswer]:
    answer = HeartbeatAnswer(is_caught_up, is_fenced=True, should_shut_down=False)
    if broker.is_fenced:
        return respond(answer, timers=timers)
    moves = evacuation(view, broker, fence=True)
    return respond(answer, moves.records, [*timers, *moves.timers])


def _shut_down(
    view: ClusterView, broker: BrokerImage, is_caught_up: bool, timers: list[SetTimer]
) -> Decision[Record, HeartbeatAnswer]:
    """Others lead what it led before it goes. It is fenced when that is done: nobody will miss it."""
    if broker.is_fenced:
        return respond(HeartbeatAnswer(is_caught_up, is_fenced=True, should_shut_down=True), timers=timers)
    moves = evacuation(view, broker, shut_down=True)
    answer = HeartbeatAnswer(is_caught_up, is_fenced=moves.is_complete, should_shut_down=moves.is_complete)
    return respond(answer, moves.records, [*timers, *moves.timers])


def decide_session_ended(
    view: ClusterView, sessions: Sessions, event: SessionEnded, now_ms: float
) -> Decision[Record, None]:
    """The broker is fenced, unless it has been heard of since the timer was set."""
    broker_id, timeout_ms = event.broker_id, view.settings.broker_session_timeout_ms
    remaining_ms = sessions.remaining_ms(broker_id, now_ms, timeout_ms)
    if remaining_ms is None:
        return respond(None)
    if list(view.image.brokers) == [broker_id]:
        # Nobody could take its place; it may know that, and keep silent. If there is another by the next look, it has
        # had no reason to be heard of until just now: a whole session is left to it then.
        sessions.count_from(broker_id, now_ms + timeout_ms)
        return respond(None, timers=[SetTimer(event, timeout_ms)])
    if remaining_ms < -LATE_MS and sessions.prolong(broker_id, now_ms + UNREAD_MS, timeout_ms):
        remaining_ms = UNREAD_MS  # it may have been heard of long ago, had this controller listened
    if remaining_ms > 0:
        return respond(None, timers=[SetTimer(event, remaining_ms)])
    epoch = sessions.epoch(broker_id)
    broker = view.image.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:  # the session of an earlier life
        sessions.end(broker_id)
        return respond(None)
    return decide_fence_broker(view, sessions, broker_id, epoch)
