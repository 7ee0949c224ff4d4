"""Replica placement for new partitions. Pure: the random start is an argument."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from moldau.machines.metadata.image import CORDONED, BrokerImage, MetadataImage
from moldau.model.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from moldau.model.ids import NO_TOPIC_ID, UNASSIGNED_DIRECTORY, TopicId
from moldau.wire import messages


class Placement(NamedTuple):
    """The replicas of a partition, preferred leader first, and the initial ISR."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def place_replicas(image: MetadataImage, partitions: int, replication_factor: int, start: int) -> list[Placement]:
    """Place replicas round robin: leaders rotate from `start`; each round shifts the followers by one more.

    Replicas are spread over racks if there are any. Fenced brokers get replicas only if there are too few others, and
    never the leadership. Cordoned brokers get none.
    """
    open_to_all = [broker for broker in image.brokers.values() if not image.is_cordoned(broker.broker_id)]
    racks = {broker.broker_id: broker.rack for broker in open_to_all}
    active = _alternating(racks, [broker for broker in open_to_all if broker.is_active])
    spare = _alternating(racks, [broker for broker in open_to_all if not broker.is_active])
    _check_replication_factor(replication_factor, len(active), len(spare), len(image.brokers) - len(open_to_all))
    return [_place(racks, active, spare, replication_factor, start + partition) for partition in range(partitions)]


def _alternating(racks: Mapping[int, str | None], brokers: Sequence[BrokerImage]) -> list[int]:
    """Interleave brokers by rack, so that neighbours are in different racks."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(broker.broker_id for broker in brokers):
        by_rack.setdefault(racks[broker_id] or "", []).append(broker_id)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker_id for broker_id in chain.from_iterable(rounds) if broker_id is not None]


def _check_replication_factor(replication_factor: int, active: int, spare: int, cordoned: int) -> None:
    reason = None
    if replication_factor > active + spare:
        besides = f", not counting {cordoned} cordoned ({CORDONED})" if cordoned else ""
        reason = (
            f"The target replication factor of {replication_factor} cannot be reached "
            f"because only {active + spare} broker(s) are registered{besides}."
        )
    elif not active:
        reason = "All brokers are currently fenced."
    if reason:
        raise InvalidReplicationFactor(f"Unable to replicate the partition {replication_factor} time(s): {reason}")


def _place(
    racks: Mapping[int, str | None], active: list[int], spare: list[int], replication_factor: int, turn: int
) -> Placement:
    leader, *others = _rotated(active, turn)
    isr = _spread(racks, [], [leader, *_rotated(others, turn // len(active))], replication_factor)
    return Placement(tuple(_spread(racks, isr, _rotated(spare, turn), replication_factor)), tuple(isr))


def _rotated(brokers: list[int], turn: int) -> list[int]:
    first = turn % len(brokers) if brokers else 0
    return brokers[first:] + brokers[:first]


def _spread(racks: Mapping[int, str | None], chosen: Sequence[int], candidates: Iterable[int], count: int) -> list[int]:
    """Return `count` brokers, the chosen first: every rack gets one before any gets two."""
    result, remaining = list(chosen), dict.fromkeys(candidates)
    used = {racks[broker_id] for broker_id in result}
    while remaining and len(result) < count:
        broker_id = next((each for each in remaining if racks[each] not in used), None)
        if broker_id is None:  # every remaining rack has one: start the next round
            used.clear()
            continue
        del remaining[broker_id]
        result.append(broker_id)
        used.add(racks[broker_id])
    return result


def check_assignment(
    image: MetadataImage, brokers: Sequence[int], replication_factor: int | None, held_by: Sequence[int] = ()
) -> None:
    """Reject an invalid manual assignment. A broker that already has a replica may be cordoned."""
    if not brokers:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    for broker_id in brokers:
        if broker_id not in image.brokers:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if image.is_cordoned(broker_id) and broker_id not in held_by:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker_id}, which is cordoned ({CORDONED})."
            )
    twice = [broker_id for broker_id in sorted(set(brokers)) if brokers.count(broker_id) > 1]
    if twice:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes the broker {twice[0]} more than once."
        )
    if replication_factor is not None and len(brokers) != replication_factor:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def assigned(image: MetadataImage, partition: int, brokers: Sequence[int]) -> Placement:
    """Return the placement of a validated assignment."""
    isr = tuple(broker_id for broker_id in brokers if image.is_active(broker_id))
    if not isr:
        raise InvalidReplicaAssignment(
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced or in "
            "controlled shutdown."
        )
    return Placement(tuple(brokers), isr)


def partition_record(
    image: MetadataImage, topic_id: TopicId, partition: int, placement: Placement
) -> messages.PartitionRecord:
    """Build the record of a new partition; its first ISR member leads."""
    assert topic_id != NO_TOPIC_ID
    return messages.PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=list(placement.replicas),
        isr=list(placement.isr),
        removing_replicas=[],
        adding_replicas=[],
        leader=placement.isr[0],
        leader_recovery_state=0,
        leader_epoch=0,
        partition_epoch=0,
        directories=[default_directory(image.brokers[broker_id]) for broker_id in placement.replicas],
    )


def default_directory(broker: BrokerImage) -> bytes:
    """Return the broker's only directory; with several, the broker chooses when it creates the replica."""
    return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED_DIRECTORY
