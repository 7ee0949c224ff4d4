"""Broker registration, fencing, unfencing and removal, and the leader elections that follow."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from moldau.machines.decision import Decision, SetTimer, respond
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.elections import changes_of_leaderless, changes_with, changes_without
from moldau.machines.metadata.features import SUPPORTED_FEATURES
from moldau.machines.metadata.image import BrokerImage, ListenerImage, MetadataImage, VersionRange
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.sessions import Sessions
from moldau.machines.metadata.settings import PARTITIONS_PER_DECISION_MAX
from moldau.model.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InvalidRequest,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from moldau.model.ids import NO_EPOCH
from moldau.wire import messages

_FENCE, _UNFENCE, _AS_IT_WAS = 1, -1, 0
_SHUT_DOWN = 1


@dataclass(frozen=True, slots=True)
class BrokerChangeContinued:
    """A broker was fenced or unfenced with more partitions than one decision changes: continue with the next."""

    broker_id: int


class Moves(NamedTuple):
    """Changes for a fenced or unfenced broker; `is_complete` if none are left."""

    records: Sequence[Record]
    timers: Sequence[SetTimer]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's registration request. A new incarnation id means a restarted process."""

    broker_id: int
    incarnation_id: bytes
    listeners: tuple[ListenerImage, ...]
    features: Mapping[str, VersionRange] = field(default_factory=dict)
    rack: str | None = None
    directories: tuple[bytes, ...] = ()
    previous_epoch: int = NO_EPOCH  # of its previous incarnation, if it lost no unwritten records


def decide_register_broker(
    view: ClusterView, sessions: Sessions, registration: Registration, *, next_offset: int
) -> Decision[Record, int]:
    """Register a broker; returns its epoch, the offset of the record, so that a later registration has a greater one.

    The broker starts fenced. Unless it names the epoch of its previous incarnation, it may have lost unsynced records:
    it is then removed from every ISR and ELR that has another member.
    """
    image, broker_id = view.image, registration.broker_id
    if broker_id < 0:
        raise InvalidRequest("A broker id cannot be negative.")
    known = image.brokers.get(broker_id)
    is_known_life = known is not None and known.incarnation_id == registration.incarnation_id
    if known is not None and not is_known_life:
        _check_free(sessions, known, registration)
    _check_features(image, registration)
    if known is not None and is_known_life:
        # A retry of the same incarnation: its leaderships are not touched.
        return respond(known.epoch, [_record(registration, known.epoch, known)])
    sessions.end(broker_id)
    has_lost = known is None or registration.previous_epoch != known.epoch
    # In one decision: a new controller would not know that records may be lost.
    changes = changes_without(view, broker_id, has_lost=has_lost, at_most=inf)
    return respond(next_offset, [_record(registration, next_offset), *changes])


def _check_free(sessions: Sessions, known: BrokerImage, registration: Registration) -> None:
    """Reject a broker id in use by a live broker.

    A new incarnation in a log dir of the previous one proves that that one ended: log dirs are locked while in use.
    """
    is_same_folder = not set(known.directories).isdisjoint(registration.directories)
    if sessions.is_alive(known.broker_id, known.epoch) and not known.is_shutting_down and not is_same_folder:
        raise DuplicateBrokerRegistration(
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session."
        )


def _check_features(image: MetadataImage, registration: Registration) -> None:
    """Require support for all finalized feature levels. A missing feature counts as unsupported.

    A log written by other software may have features without meaning here; those are not required.
    """
    for name, level in image.features.items():
        is_of_use = name in SUPPORTED_FEATURES or name in registration.features
        supported = registration.features.get(name, VersionRange(0, 0))
        if is_of_use and level not in supported:
            raise UnsupportedVersion(
                f"Unable to register because the broker does not support finalized version {level} of {name}. The "
                f"broker wants a version between {supported.lowest} and {supported.highest}, inclusive."
            )


def _record(registration: Registration, epoch: int, known: BrokerImage | None = None) -> messages.RegisterBrokerRecord:
    return messages.RegisterBrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=epoch,
        end_points=[
            messages.RegisterBrokerRecord.BrokerEndpoint(
                name=each.name,
                host=each.address.host,
                port=each.address.port,
                security_protocol=each.security_protocol,
            )
            for each in registration.listeners
        ],
        features=[
            messages.RegisterBrokerRecord.BrokerFeature(
                name=name, min_supported_version=supported.lowest, max_supported_version=supported.highest
            )
            for name, supported in sorted(registration.features.items())
        ],
        rack=registration.rack,
        fenced=known.is_fenced if known else True,
        in_controlled_shutdown=known.is_shutting_down if known else False,
        log_dirs=list(registration.directories),
    )


def record_of(broker: BrokerImage) -> messages.RegisterBrokerRecord:
    """Return the registration record of this image, for a snapshot."""
    registration = Registration(
        broker.broker_id, broker.incarnation_id, broker.listeners, broker.features, broker.rack, broker.directories
    )
    return _record(registration, broker.epoch, broker)


def decide_unfence_broker(view: ClusterView, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
    """Unfence the broker and elect it for leaderless partitions: for a single node without heartbeats."""
    broker = check_broker_epoch(view.image, broker_id, broker_epoch)
    if not broker.is_fenced:
        return respond(None)
    moves = unfence_changes(view, broker)
    return respond(None, moves.records, moves.timers)


def decide_fence_broker(
    view: ClusterView, sessions: Sessions, broker_id: int, broker_epoch: int
) -> Decision[Record, None]:
    """Fence a broker that timed out or is known to be dead, and elect other leaders."""
    broker = check_broker_epoch(view.image, broker_id, broker_epoch)
    sessions.end(broker_id)
    if broker.is_fenced:
        return respond(None)
    moves = fence_changes(view, broker, fence=True)
    return respond(None, moves.records, moves.timers)


def decide_unregister_broker(view: ClusterView, sessions: Sessions, broker_id: int) -> Decision[Record, None]:
    """Remove a broker permanently."""
    broker = view.image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"Broker ID {broker_id} is not currently registered")
    if len(view.image.brokers) == 1:
        raise InvalidRequest(f"Broker {broker_id} is the only registered broker.")
    sessions.end(broker_id)
    gone = messages.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    changes = changes_without(view, broker_id)
    return respond(None, [*changes, gone], _rest(broker_id, len(changes)))


def unfence_changes(view: ClusterView, broker: BrokerImage) -> Moves:
    """Unfence the broker and elect it for leaderless partitions."""
    changes = changes_with(view, broker)
    unfenced = _change(broker, fenced=_UNFENCE)
    return _moves(broker.broker_id, [unfenced, *changes], len(changes))


def fence_changes(view: ClusterView, broker: BrokerImage, *, fence: bool = False, shut_down: bool = False) -> Moves:
    """Move the broker's leaderships to others. A broker in controlled shutdown is fenced once none are left."""
    changes = changes_without(view, broker.broker_id)
    is_complete = len(changes) < PARTITIONS_PER_DECISION_MAX
    change = _change(
        broker,
        fenced=_FENCE if fence or is_complete else _AS_IT_WAS,
        shutting_down=_SHUT_DOWN if shut_down and not broker.is_shutting_down else _AS_IT_WAS,
    )
    return _moves(broker.broker_id, [change, *changes], len(changes))


def log_dir_changes(view: ClusterView, broker: BrokerImage, offline: Collection[bytes]) -> Moves:
    """Other log dirs of the broker are offline than before.

    Leaderships in those that went offline move where others can lead; the others may lead again.
    """
    changed = broker.with_offline_directories(offline)
    changes = [*_changes_without_offline(view, changed), *_changes_with_online(view, broker, changed)]
    change = messages.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, log_dirs=list(changed.directories)
    )
    return _moves(broker.broker_id, [change, *changes], len(changes))


def _changes_without_offline(view: ClusterView, broker: BrokerImage) -> list[messages.PartitionChangeRecord]:
    """Return the changes that move leaderships out of the broker's offline log dirs."""
    if not broker.offline_directories:
        return []
    broker_id = broker.broker_id
    return changes_without(
        view, broker_id, keeps_last=True, affected=lambda each: not broker.has_online(each.directory_of(broker_id))
    )


def _changes_with_online(
    view: ClusterView, before: BrokerImage, broker: BrokerImage
) -> list[messages.PartitionChangeRecord]:
    is_back = not set(before.offline_directories) <= set(broker.offline_directories)
    return changes_with(view, broker) if is_back and not broker.is_fenced else []


def decide_broker_change_continued(view: ClusterView, broker_id: int) -> Decision[Record, None]:
    """Continue with the next partitions of a fenced or unfenced broker."""
    if view.image.is_active(broker_id):
        changes = _changes_without_offline(view, view.image.brokers[broker_id]) or changes_of_leaderless(view)
    else:
        changes = changes_without(view, broker_id, keeps_last=_can_be_read(view.image, broker_id))
    return respond(None, changes, _rest(broker_id, len(changes)))


def resume_broker_changes(view: ClusterView) -> list[SetTimer]:
    """Resume work that a failed controller left incomplete.

    A fenced broker may still be in ISRs, or an unfenced one may not lead partitions that wait for it. The latter looks
    at all leaderless partitions, so naming one broker is enough.
    """
    gone = [broker_id for broker_id in view.index.brokers if not _is_settled(view.image, broker_id)]
    waited_for = (each for key in view.index.leaderless for each in view.topic(key).partitions[key.partition].replicas)
    back = next((broker_id for broker_id in waited_for if view.image.is_active(broker_id)), None)
    return [SetTimer(BrokerChangeContinued(each), 0) for each in (gone if back is None else [*gone, back])]


def _is_settled(image: MetadataImage, broker_id: int) -> bool:
    """Whether it is active, with all its log dirs."""
    return image.is_active(broker_id) and not image.brokers[broker_id].offline_directories


def _can_be_read(image: MetadataImage, broker_id: int) -> bool:
    """Whether it is inactive only because its log dir cannot be written."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.is_fenced and not broker.is_shutting_down


def _moves(broker_id: int, records: Sequence[Record], changes: int) -> Moves:
    timers = _rest(broker_id, changes)
    return Moves(records, timers, not timers)


def _rest(broker_id: int, changes: int) -> list[SetTimer]:
    return [] if changes < PARTITIONS_PER_DECISION_MAX else [SetTimer(BrokerChangeContinued(broker_id), 0)]


def _change(
    broker: BrokerImage, *, fenced: int = _AS_IT_WAS, shutting_down: int = _AS_IT_WAS
) -> messages.BrokerRegistrationChangeRecord:
    return messages.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=fenced, in_controlled_shutdown=shutting_down
    )


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Return the broker if this is its current epoch."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"No broker registration found for broker id {broker_id}")
    if broker.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}")
    return broker
