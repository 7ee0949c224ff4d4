"""What EndTxn makes of a transactional id: version 1 (KIP-98), and version 2 with an epoch each (KIP-890)."""

from dataclasses import replace

from moldau.machines.transactions.init_producer_id import needed
from moldau.machines.transactions.state import (
    BUMPS_EPOCH_FROM,
    COMPLETED,
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
    """Only the producer that the transactional id has now may speak for it."""
    if producer.producer_id != current.identity.producer_id:
        raise InvalidProducerIdMapping(f"Producer {producer.producer_id} does not have this transactional id.")
    if producer.epoch != current.identity.epoch:
        raise ProducerFenced(f"Epoch {producer.epoch} is not the current one, {current.identity.epoch}.")


def concurrent() -> ConcurrentTransactions:
    return ConcurrentTransactions("The transaction before is being completed; try again.")


def is_repeated(current: Transaction, producer: ProducerIdentity, client_version: int) -> bool:
    """Whether an EndTxn like this one has brought the id to where it is.

    In version 1 the epoch stays, so the state alone says it. In version 2 the epoch that it came with is the one
    before; with the current one it is the end of the next transaction.
    """
    if current.state not in PREPARED and current.state not in COMPLETED:
        return False
    if client_version < BUMPS_EPOCH_FROM:
        return producer == current.identity
    if current.client_version < BUMPS_EPOCH_FROM:  # nobody's EndTxn has raised this epoch
        return False
    if producer.producer_id == current.producer_id:
        return producer.epoch + 1 == current.epoch
    return (
        current.state in COMPLETED
        and current.epoch == FIRST_EPOCH
        and producer == (current.previous_producer_id, EPOCH_EXHAUSTED)
    )


def check_outcome(current: Transaction, *, is_commit: bool) -> None:
    """A transaction ends once: whoever asks again must ask for the same."""
    was_commit = current.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    if was_commit is not is_commit:
        raise InvalidTxnState(f"The transaction was {'committed' if was_commit else 'aborted'} already.")


def prepared(
    current: Transaction, *, is_commit: bool, client_version: int, fresh_producer_id: ProducerId | None, wall_ms: int
) -> Transaction:
    """The outcome is decided: once this is committed, markers may be written."""
    bumps = client_version >= BUMPS_EPOCH_FROM
    is_exhausted = bumps and current.epoch >= EPOCH_EXHAUSTED
    return replace(
        current,
        epoch=min(current.epoch + 1, EPOCH_MAX) if bumps else current.epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=needed(fresh_producer_id) if is_exhausted else NO_PRODUCER_ID,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        last_update_ms=wall_ms,
        client_version=client_version,
    )


def completed(current: Transaction, wall_ms: int) -> Transaction:
    """Every partition knows the outcome: the next transaction may begin."""
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


def rotated(current: Transaction, fresh_producer_id: ProducerId | None, wall_ms: int) -> Transaction:
    """The last epoch of all was taken to fence a producer that may go on: it does so under another id."""
    return replace(
        current,
        producer_id=needed(fresh_producer_id),
        epoch=FIRST_EPOCH,
        previous_producer_id=current.producer_id,
        last_update_ms=wall_ms,
    )
