"""Brokers register, are fenced and unfenced, and leave; leaderships follow."""

from collections.abc import Mapping, Sequence
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
from moldau.machines.metadata.settings import PARTITIONS_PER_SLICE_MAX
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
class WorkMoved:
    """A broker left or came back with more partitions than one decision moves: here are the next."""

    broker_id: int


class Moves(NamedTuple):
    """What moves to or from a broker now; `is_complete` says that nothing is left to be moved."""

    records: Sequence[Record]
    timers: Sequence[SetTimer]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself when it starts. A new incarnation id means a new life of the process."""

    broker_id: int
    incarnation_id: bytes
    listeners: tuple[ListenerImage, ...]
    features: Mapping[str, VersionRange] = field(default_factory=dict)
    rack: str | None = None
    directories: tuple[bytes, ...] = ()
    previous_epoch: int = NO_EPOCH  # of its last life, if that left nothing unwritten behind


def decide_register_broker(
    view: ClusterView, sessions: Sessions, registration: Registration, *, next_offset: int
) -> Decision[Record, int]:
    """Answers the broker's epoch: the offset of its record, so that a later registration always has a greater one.

    The broker begins fenced. Unless it names the epoch of its last life it may have lost what was not on its disk: it
    is then in sync nowhere, and eligible nowhere, where somebody else is.
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
        # The same life asks again: nothing it leads is touched.
        return respond(known.epoch, [_record(registration, known.epoch, known)])
    sessions.end(broker_id)
    has_lost = known is None or registration.previous_epoch != known.epoch
    # All at once: a successor of this controller would not know any more that something was lost.
    changes = changes_without(view, broker_id, has_lost=has_lost, at_most=inf)
    return respond(next_offset, [_record(registration, next_offset), *changes])


def _check_free(sessions: Sessions, known: BrokerImage, registration: Registration) -> None:
    """The id is taken while the broker that has it lives.

    A new life in the folder of the old one proves that the old one has ended: a folder is locked by whoever uses it.
    """
    is_same_folder = bool(known.directories) and known.directories == registration.directories
    if sessions.is_alive(known.broker_id, known.epoch) and not known.is_shutting_down and not is_same_folder:
        raise DuplicateBrokerRegistration(
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session."
        )


def _check_features(image: MetadataImage, registration: Registration) -> None:
    """Everybody works at the cluster's levels. What a broker does not name it does not know.

    A log that other software began may have features that mean nothing here: nobody needs to know those.
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
    """The registration that leads to this image, for a snapshot."""
    registration = Registration(
        broker.broker_id, broker.incarnation_id, broker.listeners, broker.features, broker.rack, broker.directories
    )
    return _record(registration, broker.epoch, broker)


def decide_unfence_broker(view: ClusterView, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
    """The broker may lead, and takes what has no leader: for a node that is alone and needs no heartbeats."""
    broker = check_broker_epoch(view.image, broker_id, broker_epoch)
    if not broker.is_fenced:
        return respond(None)
    moves = restoration(view, broker)
    return respond(None, moves.records, moves.timers)


def decide_fence_broker(
    view: ClusterView, sessions: Sessions, broker_id: int, broker_epoch: int
) -> Decision[Record, None]:
    """The broker is silent, or known to be dead: others lead what it led, where they can."""
    broker = check_broker_epoch(view.image, broker_id, broker_epoch)
    sessions.end(broker_id)
    if broker.is_fenced:
        return respond(None)
    moves = evacuation(view, broker, fence=True)
    return respond(None, moves.records, moves.timers)


def decide_unregister_broker(view: ClusterView, sessions: Sessions, broker_id: int) -> Decision[Record, None]:
    """The broker is gone for good."""
    broker = view.image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"Broker ID {broker_id} is not currently registered")
    if len(view.image.brokers) == 1:
        raise InvalidRequest(f"Broker {broker_id} is the only one there is.")
    sessions.end(broker_id)
    gone = messages.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    changes = changes_without(view, broker_id)
    return respond(None, [*changes, gone], _rest(broker_id, len(changes)))


def restoration(view: ClusterView, broker: BrokerImage) -> Moves:
    """The broker is unfenced, and takes what has no leader and waits for it."""
    changes = changes_with(view, broker.broker_id)
    unfenced = _change(broker, fenced=_UNFENCE)
    return _moves(broker.broker_id, [unfenced, *changes], len(changes))


def evacuation(view: ClusterView, broker: BrokerImage, *, fence: bool = False, shut_down: bool = False) -> Moves:
    """Others take what the broker led. Who shuts down is fenced as well once nothing is left."""
    changes = changes_without(view, broker.broker_id)
    is_complete = len(changes) < PARTITIONS_PER_SLICE_MAX
    change = _change(
        broker,
        fenced=_FENCE if fence or is_complete else _AS_IT_WAS,
        shutting_down=_SHUT_DOWN if shut_down and not broker.is_shutting_down else _AS_IT_WAS,
    )
    return _moves(broker.broker_id, [change, *changes], len(changes))


def decide_work_moved(view: ClusterView, broker_id: int) -> Decision[Record, None]:
    """The next partitions of a broker that left or came back."""
    is_back = view.image.is_active(broker_id)
    changes = changes_of_leaderless(view) if is_back else changes_without(view, broker_id)
    return respond(None, changes, _rest(broker_id, len(changes)))


def unfinished_work(view: ClusterView) -> list[SetTimer]:
    """What a controller that went down may have left half done.

    Brokers are gone and still count, or one is back and does not lead what waits for it. The work of one that is back
    looks at everything that has no leader, so it is enough to name one.
    """
    gone = [broker_id for broker_id in view.index.brokers if not view.image.is_active(broker_id)]
    waited_for = (each for key in view.index.leaderless for each in view.topic(key).partitions[key.partition].replicas)
    back = next((broker_id for broker_id in waited_for if view.image.is_active(broker_id)), None)
    return [SetTimer(WorkMoved(each), 0) for each in (gone if back is None else [*gone, back])]


def _moves(broker_id: int, records: Sequence[Record], changes: int) -> Moves:
    timers = _rest(broker_id, changes)
    return Moves(records, timers, not timers)


def _rest(broker_id: int, changes: int) -> list[SetTimer]:
    return [] if changes < PARTITIONS_PER_SLICE_MAX else [SetTimer(WorkMoved(broker_id), 0)]


def _change(
    broker: BrokerImage, *, fenced: int = _AS_IT_WAS, shutting_down: int = _AS_IT_WAS
) -> messages.BrokerRegistrationChangeRecord:
    return messages.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=fenced, in_controlled_shutdown=shutting_down
    )


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker, if it speaks for its present life."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"No broker registration found for broker id {broker_id}")
    if broker.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}")
    return broker
