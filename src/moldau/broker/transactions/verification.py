"""Verification (KIP-890): before the first batch of a transaction in a partition, the coordinator must confirm it."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from moldau.broker.coordinators.host import ClusterView
from moldau.broker.partitions.partition import Partition
from moldau.broker.transactions.add_partitions import Codes, PartitionsOfTransaction
from moldau.broker.transactions.transaction_coordinator import Transactions
from moldau.client.errors import error_of
from moldau.model.errors import ErrorCode, InvalidTxnState, KafkaError
from moldau.model.ids import NO_SEQUENCE, TopicPartition
from moldau.model.ports import Clock

ROUNDS_MAX: Final = 3  # a marker that is written between request and response requires another round
RETRIES_MAX: Final = 5  # while the producer's previous transaction is ending, usually some milliseconds
RETRY_S: Final = 0.02


class TransactionalClient(NamedTuple):
    """A producer, and the capabilities of its protocol version."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds_on_write: bool  # a write adds the partition to the transaction; older clients send AddPartitionsToTxn first
    supports_abortable: bool  # understands TRANSACTION_ABORTABLE


class FirstBatch(NamedTuple):
    """The first batch of a transaction in this partition."""

    partition: Partition
    sequence: int = NO_SEQUENCE


Rejections = dict[TopicPartition, ErrorCode]


class TransactionHost(ClusterView, Protocol):
    """The parts of the broker that verification uses."""

    @property
    def clock(self) -> Clock: ...

    @property
    def transactions(self) -> Transactions: ...


async def verify_first_batches(
    broker: TransactionHost, client: TransactionalClient, batches: Sequence[FirstBatch]
) -> Rejections:
    """Return the errors of partitions that must not be appended to. Append to the others before the next await."""
    rejected: Rejections = {}
    for _ in range(ROUNDS_MAX):
        rejections, batches = await _verify_once(broker, client, batches)
        rejected |= rejections
        if not batches:
            return rejected
    return rejected | {each.partition.name: ErrorCode.INVALID_TXN_STATE for each in batches}


async def _verify_once(
    broker: TransactionHost, client: TransactionalClient, batches: Sequence[FirstBatch]
) -> tuple[Rejections, Sequence[FirstBatch]]:
    """Return the rejections, and the batches to verify unconfirmed because a marker was written meanwhile."""
    now_ms = broker.clock.wall_ms()
    producer_id, epoch = client.producer_id, client.producer_epoch
    started = [
        (each, each.partition.log.producers.verifications.seek(producer_id, epoch, each.sequence, now_ms))
        for each in batches
    ]
    codes = await _codes(broker, client, [each.partition.name for each in batches])
    rejected: Rejections = {}
    unconfirmed: list[FirstBatch] = []
    for each, verification in started:
        code = codes[each.partition.name]
        verifications = each.partition.log.producers.verifications
        if code is not ErrorCode.NONE:
            rejected[each.partition.name] = code
            if code not in _RETRIABLE:
                verifications.reject(producer_id, verification)
        elif not verifications.complete(producer_id, verification):
            unconfirmed.append(each)
    return rejected, unconfirmed


async def _codes(broker: TransactionHost, client: TransactionalClient, partitions: Sequence[TopicPartition]) -> Codes:
    if not client.adds_on_write and not broker.settings.transaction_partition_verification_enable:
        return dict.fromkeys(partitions, ErrorCode.NONE)
    transaction = PartitionsOfTransaction(
        client.transactional_id, client.producer_id, client.producer_epoch, not client.adds_on_write, partitions
    )
    for _ in range(RETRIES_MAX if client.adds_on_write else 0):
        codes = await broker.transactions.add_partitions_channel.request(transaction)
        if ErrorCode.CONCURRENT_TRANSACTIONS not in codes.values():
            return codes
        await asyncio.sleep(RETRY_S)
    return await broker.transactions.add_partitions_channel.request(transaction)


_UNAVAILABLE: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)

_RETRIABLE: Final = (*_UNAVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS)  # the producer retries with the same batch


def map_error_for_produce(code: ErrorCode, client: TransactionalClient) -> KafkaError:
    """Map the error for a Produce response, as Kafka does: older producers retry after NOT_ENOUGH_REPLICAS."""
    if code in _UNAVAILABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not client.adds_on_write):
        return error_of(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The transaction coordinator could not verify that the partition is in the transaction ({code.name}).",
        )
    return _map_error(code, client)


def map_error_for_offset_commit(code: ErrorCode, client: TransactionalClient) -> KafkaError:
    """Map the error for a TxnOffsetCommit response, which comes from a group coordinator."""
    if code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.OPERATION_NOT_ATTEMPTED) or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and not client.adds_on_write
    ):
        return error_of(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return _map_error(code, client)


def _map_error(code: ErrorCode, client: TransactionalClient) -> KafkaError:
    if code is ErrorCode.PRODUCER_FENCED:
        return error_of(ErrorCode.INVALID_PRODUCER_EPOCH, "A newer producer uses the transactional id.")
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (
        code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE) and not client.supports_abortable
    ):
        return InvalidTxnState("The partition is not part of the transaction.")
    return error_of(code)
