"""Broker heartbeats: sessions, unfencing, and controlled shutdown."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.machines.decision import Decision, SetTimer, respond
from moldau.machines.metadata.brokers import (
    check_broker_epoch,
    decide_fence_broker,
    fence_changes,
    log_dir_changes,
    unfence_changes,
)
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import BrokerImage
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.sessions import SessionEnded, Sessions
from moldau.model.ids import LOST_DIRECTORY

STALL_MS: Final = 100.0  # a timer later than this means that the controller stalled
STALL_GRACE_MS: Final = 1_000.0  # time to process heartbeats that arrived during the stall


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    """A broker's heartbeat. `metadata_offset` is the last offset applied there."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shut_down: bool = False
    offline_directories: tuple[bytes, ...] = ()


class HeartbeatResult(NamedTuple):
    """The response to a heartbeat."""

    is_caught_up: bool  # with its own registration
    is_fenced: bool
    should_shut_down: bool


def decide_broker_heartbeat(
    view: ClusterView, sessions: Sessions, heartbeat: BrokerHeartbeat, now_ms: float
) -> Decision[Record, HeartbeatResult]:
    """Unfence a broker that has caught up with its registration; move leaderships away from one that is stopping or
    whose log dirs are offline."""
    broker = check_broker_epoch(view.image, heartbeat.broker_id, heartbeat.broker_epoch)
    timeout_ms = view.settings.broker_session_timeout_ms
    timers = sessions.record_heartbeat(broker.broker_id, broker.epoch, now_ms, timeout_ms)
    is_caught_up = heartbeat.metadata_offset >= broker.epoch
    if heartbeat.wants_shut_down:
        return _shut_down(view, broker, is_caught_up, timers)
    if heartbeat.wants_fence:
        return _fence(view, broker, is_caught_up, timers)
    if _has_other_offline_dirs(broker, heartbeat):
        moves = log_dir_changes(view, broker, heartbeat.offline_directories)
        response = HeartbeatResult(is_caught_up, broker.is_fenced, should_shut_down=False)
        return respond(response, moves.records, [*timers, *moves.timers])
    if not broker.is_fenced or not is_caught_up or broker.is_shutting_down:
        return respond(HeartbeatResult(is_caught_up, broker.is_fenced, should_shut_down=False), timers=timers)
    moves = unfence_changes(view, broker)
    response = HeartbeatResult(is_caught_up, is_fenced=False, should_shut_down=False)
    return respond(response, moves.records, [*timers, *moves.timers])


def _has_other_offline_dirs(broker: BrokerImage, heartbeat: BrokerHeartbeat) -> bool:
    offline = heartbeat.offline_directories
    if not offline and LOST_DIRECTORY not in broker.directories:
        return False
    return broker.with_offline_directories(offline).directories != broker.directories


def _fence(
    view: ClusterView, broker: BrokerImage, is_caught_up: bool, timers: list[SetTimer]
) -> Decision[Record, HeartbeatResult]:
    response = HeartbeatResult(is_caught_up, is_fenced=True, should_shut_down=False)
    if broker.is_fenced:
        return respond(response, timers=timers)
    moves = fence_changes(view, broker, fence=True)
    return respond(response, moves.records, [*timers, *moves.timers])


def _shut_down(
    view: ClusterView, broker: BrokerImage, is_caught_up: bool, timers: list[SetTimer]
) -> Decision[Record, HeartbeatResult]:
    """Move its leaderships to others, then fence it: it may stop."""
    if broker.is_fenced:
        return respond(HeartbeatResult(is_caught_up, is_fenced=True, should_shut_down=True), timers=timers)
    moves = fence_changes(view, broker, shut_down=True)
    response = HeartbeatResult(is_caught_up, is_fenced=moves.is_complete, should_shut_down=moves.is_complete)
    return respond(response, moves.records, [*timers, *moves.timers])


def decide_session_ended(
    view: ClusterView, sessions: Sessions, event: SessionEnded, now_ms: float
) -> Decision[Record, None]:
    """Fence the broker, unless a heartbeat arrived since the timer was set."""
    broker_id, timeout_ms = event.broker_id, view.settings.broker_session_timeout_ms
    remaining_ms = sessions.remaining_ms(broker_id, now_ms, timeout_ms)
    if remaining_ms is None:
        return respond(None)
    if list(view.image.brokers) == [broker_id]:
        # No other broker could take over, so a missing heartbeat has no effect. If there is another broker at the next
        # check, this one gets a full session first.
        sessions.restart_from(broker_id, now_ms + timeout_ms)
        return respond(None, timers=[SetTimer(event, timeout_ms)])
    if remaining_ms < -STALL_MS and sessions.extend(broker_id, now_ms + STALL_GRACE_MS, timeout_ms):
        remaining_ms = STALL_GRACE_MS  # its heartbeats may have arrived while this controller stalled
    if remaining_ms > 0:
        return respond(None, timers=[SetTimer(event, remaining_ms)])
    epoch = sessions.epoch(broker_id)
    broker = view.image.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:  # the session of a previous incarnation
        sessions.end(broker_id)
        return respond(None)
    return decide_fence_broker(view, sessions, broker_id, epoch)
