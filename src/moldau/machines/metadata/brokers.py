"""Brokers register, are fenced and unfenced, and leave; leaderships follow."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from moldau.machines.decision import Decision, answered
from moldau.machines.metadata.elections import changes_with, changes_without
from moldau.machines.metadata.image import BrokerImage, ListenerImage, MetadataImage, VersionRange
from moldau.machines.metadata.records import Record
from moldau.model.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InvalidRequest,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from moldau.wire import messages

_FENCE, _UNFENCE = 1, -1


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself when it starts. A new incarnation id means a new life of the process."""

    broker_id: int
    incarnation_id: bytes
    listeners: tuple[ListenerImage, ...]
    features: Mapping[str, VersionRange] = field(default_factory=dict)
    rack: str | None = None
    directories: tuple[bytes, ...] = ()


def decide_register_broker(
    image: MetadataImage, registration: Registration, *, next_offset: int, live_brokers: Set[int] = frozenset()
) -> Decision[Record, int]:
    """Answers the broker's epoch: the offset of its record, so that a later registration always has a greater one.

    The broker begins fenced. `live_brokers` are those whose session has not expired: their ids are taken.
    """
    _check_registration(image, registration)
    known = image.brokers.get(registration.broker_id)
    if known is None:
        return answered(next_offset, [_record(registration, next_offset)])
    if known.incarnation_id == registration.incarnation_id:  # the same life asks again: nothing it leads is touched
        return answered(known.epoch, [_record(registration, known.epoch, known)])
    if registration.broker_id in live_brokers:
        raise DuplicateBrokerRegistration(
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session."
        )
    changes = changes_without(image, registration.broker_id)
    return answered(next_offset, [_record(registration, next_offset), *changes])


def _check_registration(image: MetadataImage, registration: Registration) -> None:
    if registration.broker_id < 0:
        raise InvalidRequest("A broker id cannot be negative.")
    for name, supported in registration.features.items():
        level = image.features.get(name)
        if level is not None and level not in supported:
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


def decide_unfence_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
    """The broker has caught up with the metadata: it may lead, and takes what has no leader."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    if not broker.is_fenced:
        return answered(None)
    return answered(None, [_fencing(broker, _UNFENCE), *changes_with(image, broker_id)])


def decide_fence_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
    """The broker is silent: others lead what it led, where they can."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    if broker.is_fenced:
        return answered(None)
    return answered(None, [_fencing(broker, _FENCE), *changes_without(image, broker_id)])


def _fencing(broker: BrokerImage, change: int) -> messages.BrokerRegistrationChangeRecord:
    return messages.BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=change)


def decide_unregister_broker(image: MetadataImage, broker_id: int) -> Decision[Record, None]:
    """The broker is gone for good."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"Broker ID {broker_id} is not currently registered")
    gone = messages.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return answered(None, [*changes_without(image, broker_id), gone])


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker, if it speaks for its present life."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"No broker registration found for broker id {broker_id}")
    if broker.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}")
    return broker
