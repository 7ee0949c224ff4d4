"""Transactional ids as returned to admin clients."""

from collections.abc import Iterable, Mapping, Sequence

from moldau.machines.transactions.state import Transaction
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TIMESTAMP, TopicPartition
from moldau.wire import messages


def describe_transaction(
    transactional_id: str, transaction: Transaction | None
) -> messages.DescribeTransactionsResponse.TransactionState:
    """Describe a transactional id; an error is part of the response."""
    if transaction is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
        return messages.DescribeTransactionsResponse.TransactionState(
            transactional_id=transactional_id, error_code=code
        )
    return messages.DescribeTransactionsResponse.TransactionState(
        transactional_id=transactional_id,
        error_code=ErrorCode.NONE,
        transaction_state=transaction.state.kafka_name,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=_topics(transaction.partitions),
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[messages.DescribeTransactionsResponse.TopicData]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [
        messages.DescribeTransactionsResponse.TopicData(topic=topic, partitions=partitions)
        for topic, partitions in topics.items()
    ]


def list_matching(
    transactions: Mapping[str, Transaction],
    states: Sequence[str],
    producer_ids: Sequence[int],
    longer_than_ms: int,
    wall_ms: int,
) -> list[messages.ListTransactionsResponse.TransactionState]:
    """List the transactions that match every filter; an empty filter matches all."""
    wanted_states, wanted_ids = frozenset(states), frozenset(producer_ids)
    return [
        messages.ListTransactionsResponse.TransactionState(
            transactional_id=transactional_id,
            producer_id=each.producer_id,
            transaction_state=each.state.kafka_name,
        )
        for transactional_id, each in transactions.items()
        if (not states or each.state.kafka_name in wanted_states)
        and (not producer_ids or each.producer_id in wanted_ids)
        and (longer_than_ms < 0 or _age_ms(each, wall_ms) > longer_than_ms)
    ]


def _age_ms(transaction: Transaction, wall_ms: int) -> int:
    return -1 if transaction.start_ms == NO_TIMESTAMP else wall_ms - transaction.start_ms
