"""EndTxn: transitions of a transactional id, version 1 (KIP-98) and version 2 with an epoch bump per transaction
(KIP-890)."""

from dataclasses import replace

from moldau.machines.transactions.init_producer_id import require_producer_id
from moldau.machines.transactions.state import (
    COMPLETED,
    EPOCH_BUMP_VERSION,
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    FIRST_EPOCH,
    PREPARED,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from moldau.model.errors import ConcurrentTransactions, InvalidProducerIdMapping, InvalidTxnState, ProducerFenced
from moldau.model.ids import NO_PRODUCER_ID, ProducerId


def check_producer(current: Transaction, producer: ProducerIdentity) -> None:
    """Check that `producer` is the current producer of the transactional id."""
    if producer.producer_id != current.identity.producer_id:
        raise InvalidProducerIdMapping(f"Producer {producer.producer_id} does not own this transactional id.")
    if producer.epoch != current.identity.epoch:
        raise ProducerFenced(f"Epoch {producer.epoch} is fenced; the current epoch is {current.identity.epoch}.")


def concurrent_transactions() -> ConcurrentTransactions:
    return ConcurrentTransactions("The previous transaction is still completing; retry.")


def is_retry(current: Transaction, producer: ProducerIdentity, client_version: int) -> bool:
    """Whether this EndTxn is a retry of the request that led to the current state.

    In version 1 the epoch does not change, so the state alone decides. In version 2 a retry has the previous epoch;
    with the current epoch the request ends the next transaction.
    """
    if current.state not in PREPARED and current.state not in COMPLETED:
        return False
    if client_version < EPOCH_BUMP_VERSION:
        return producer == current.identity
    if current.client_version < EPOCH_BUMP_VERSION:  # no EndTxn has bumped this epoch
        return False
    if producer.producer_id == current.producer_id:
        return producer.epoch + 1 == current.epoch
    return (
        current.state in COMPLETED
        and current.epoch == FIRST_EPOCH
        and producer == (current.previous_producer_id, EPOCH_EXHAUSTED)
    )


def check_outcome(current: Transaction, *, is_commit: bool) -> None:
    """Check that a retried EndTxn has the same outcome as the first."""
    was_commit = current.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    if was_commit is not is_commit:
        raise InvalidTxnState(f"The transaction is already {'committed' if was_commit else 'aborted'}.")


def prepare_end(
    current: Transaction, *, is_commit: bool, client_version: int, new_producer_id: ProducerId | None, wall_ms: int
) -> Transaction:
    """Decide the outcome: markers may be written once this is committed."""
    bumps = client_version >= EPOCH_BUMP_VERSION
    is_exhausted = bumps and current.epoch >= EPOCH_EXHAUSTED
    return replace(
        current,
        epoch=min(current.epoch + 1, EPOCH_MAX) if bumps else current.epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=require_producer_id(new_producer_id) if is_exhausted else NO_PRODUCER_ID,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        last_update_ms=wall_ms,
        client_version=client_version,
    )


def complete_end(current: Transaction, wall_ms: int) -> Transaction:
    """Complete the transaction after all markers are written: the next one may begin."""
    is_commit = current.state is TransactionState.PREPARE_COMMIT
    producer_id, epoch = current.identity
    return replace(
        current,
        producer_id=producer_id,
        epoch=epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions={},
        last_update_ms=wall_ms,
    )


def rotate_producer_id(current: Transaction, new_producer_id: ProducerId | None, wall_ms: int) -> Transaction:
    """Continue under a new producer id after the last epoch was used to fence the producer."""
    return replace(
        current,
        producer_id=require_producer_id(new_producer_id),
        epoch=FIRST_EPOCH,
        previous_producer_id=current.producer_id,
        last_update_ms=wall_ms,
    )
