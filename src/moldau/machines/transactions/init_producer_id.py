"""InitProducerId: transitions of a transactional id (KIP-98, KIP-360)."""

from dataclasses import replace
from typing import NamedTuple

from moldau.machines.transactions.state import (
    COMPLETED,
    EPOCH_BUMP_VERSION,
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
    """The decision needs a new producer id: allocate one and retry with it."""


class InitializedProducer(NamedTuple):
    """An initialized producer, and the epoch that a retry of its request would carry."""

    transaction: Transaction
    last_epoch: int


def require_producer_id(new_producer_id: ProducerId | None) -> ProducerId:
    if new_producer_id is None:
        raise ProducerIdNeeded
    return new_producer_id


def check_expected(current: Transaction, expected: ProducerIdentity | None) -> None:
    """Check that a producer resuming after an error is the current one, or the one whose epochs ran out before it."""
    if expected is None or expected.producer_id in (current.producer_id, current.identity.producer_id):
        return
    if expected.producer_id != current.previous_producer_id or expected.epoch < EPOCH_EXHAUSTED:
        raise ProducerFenced("Another producer took over this transactional id.")


def last_epoch_of(current: Transaction) -> int:
    """Return the producer's previous epoch as far as the log shows it: in version 2 each end bumps the epoch."""
    if current.state not in COMPLETED or current.client_version < EPOCH_BUMP_VERSION:
        return NO_PRODUCER_EPOCH
    return current.epoch - 1 if current.previous_producer_id == current.producer_id else EPOCH_EXHAUSTED


def initialize(
    current: Transaction,
    last_epoch: int,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    new_producer_id: ProducerId | None,
    wall_ms: int,
) -> InitializedProducer:
    """Initialize the producer with a new epoch and no open transaction. Raises `ProducerFenced`."""
    producer_id, epoch = current.producer_id, current.epoch
    is_retry = expected is not None and expected.epoch != epoch and expected.epoch == last_epoch
    if expected is not None and expected.epoch != epoch and not is_retry:
        raise ProducerFenced(f"Epoch {expected.epoch} is fenced; the current epoch is {epoch}.")
    if epoch >= EPOCH_MAX or (epoch >= EPOCH_EXHAUSTED and not is_retry):
        producer_id, epoch = require_producer_id(new_producer_id), FIRST_EPOCH
    elif not is_retry:  # a retry: the lost response carried this epoch already
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
    return InitializedProducer(transaction, NO_PRODUCER_EPOCH if expected is None else expected.epoch)


def fence_and_abort(current: Transaction, wall_ms: int, *, is_replaced: bool) -> Transaction:
    """Abort the open transaction with an epoch that its producer does not have.

    A version 2 producer that returns with the previous epoch is treated as a retry of EndTxn. If another producer
    replaces it that must not happen, so the epoch is bumped by two, if possible.
    """
    step = 2 if is_replaced and current.client_version >= EPOCH_BUMP_VERSION else 1
    return replace(
        current,
        epoch=min(current.epoch + step, EPOCH_MAX),
        previous_producer_id=current.producer_id,
        state=TransactionState.PREPARE_ABORT,
        last_update_ms=wall_ms,
    )
