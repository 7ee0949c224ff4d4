"""What InitProducerId makes of a transactional id (KIP-98, KIP-360)."""

from dataclasses import replace
from typing import NamedTuple

from moldau.machines.transactions.state import (
    BUMPS_EPOCH_FROM,
    COMPLETED,
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    FIRST_EPOCH,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from moldau.model.errors import ProducerFenced
from moldau.model.ids import NO_PRODUCER_EPOCH, NO_TIMESTAMP, ProducerId


class ProducerIdNeeded(Exception):
    """Nothing is decided yet: a fresh producer id is needed. Get one, then ask again with it."""


class Initialised(NamedTuple):
    """A producer that may begin, and the epoch with which the same request would come again."""

    transaction: Transaction
    last_epoch: int


def needed(fresh_producer_id: ProducerId | None) -> ProducerId:
    if fresh_producer_id is None:
        raise ProducerIdNeeded
    return fresh_producer_id


def check_expected(current: Transaction, expected: ProducerIdentity | None) -> None:
    """Whoever goes on after an error must have been this producer, or the one whose epochs were exhausted before it."""
    if expected is None or expected.producer_id in (current.producer_id, current.identity.producer_id):
        return
    if expected.producer_id != current.previous_producer_id or expected.epoch < EPOCH_EXHAUSTED:
        raise ProducerFenced("Another producer has taken this transactional id over.")


def last_epoch_of(current: Transaction) -> int:
    """The epoch that the producer had before, as far as the log tells: in version 2, an end raises it by one."""
    if current.state not in COMPLETED or current.client_version < BUMPS_EPOCH_FROM:
        return NO_PRODUCER_EPOCH
    return current.epoch - 1 if current.previous_producer_id == current.producer_id else EPOCH_EXHAUSTED


def initialised(
    current: Transaction,
    last_epoch: int,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    fresh_producer_id: ProducerId | None,
    wall_ms: int,
) -> Initialised:
    """The producer under a new epoch; no transaction is open. Raises `ProducerFenced`."""
    producer_id, epoch = current.producer_id, current.epoch
    is_repeated = expected is not None and expected.epoch != epoch and expected.epoch == last_epoch
    if expected is not None and expected.epoch != epoch and not is_repeated:
        raise ProducerFenced(f"Epoch {expected.epoch} is not the current one, {epoch}.")
    if epoch >= EPOCH_MAX or (epoch >= EPOCH_EXHAUSTED and not is_repeated):
        producer_id, epoch = needed(fresh_producer_id), FIRST_EPOCH
    elif not is_repeated:  # otherwise it was raised for the request before, whose answer was lost
        epoch += 1
    transaction = replace(
        current,
        producer_id=producer_id,
        epoch=epoch,
        previous_producer_id=current.producer_id,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions={},
        start_ms=NO_TIMESTAMP,
        last_update_ms=wall_ms,
    )
    return Initialised(transaction, NO_PRODUCER_EPOCH if expected is None else expected.epoch)


def fenced(current: Transaction, wall_ms: int, *, is_replaced: bool) -> Transaction:
    """The open transaction is aborted under an epoch that its producer does not have.

    A producer of version 2 that comes back with the epoch before takes itself for one whose EndTxn went through. Where
    another one takes its place that must not be so: the epoch is raised by two, if there are as many.
    """
    step = 2 if is_replaced and current.client_version >= BUMPS_EPOCH_FROM else 1
    return replace(
        current,
        epoch=min(current.epoch + step, EPOCH_MAX),
        previous_producer_id=current.producer_id,
        state=TransactionState.PREPARE_ABORT,
        last_update_ms=wall_ms,
    )
