"""Ends a transaction in a partition: appends the marker that the transaction coordinator sends."""

from typing import NamedTuple

from moldau.broker.partitions.partition import Partition
from moldau.records.control import build_transaction_marker
from moldau.records.header import read_header


class TransactionEnding(NamedTuple):
    """The contents of a transaction marker, and the transaction version of its producer."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


def end_transaction(partition: Partition, ending: TransactionEnding, now_ms: int) -> int:
    """Append the marker that ends a transaction, unless it is there already; return the offset after it."""
    log = partition.log
    producer_id, epoch, coordinator_epoch, is_commit, version = ending
    if log.producers.check_end(producer_id, epoch, coordinator_epoch, version):
        marker = build_transaction_marker(
            is_commit=is_commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        partition.append(memoryview(marker), read_header(marker), now_ms)
    partition.forget_ends()
    return log.end_offset
