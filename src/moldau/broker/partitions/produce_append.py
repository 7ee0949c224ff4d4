"""The last rules for a produced batch, and its append. The handler and the fast path of Produce both end here."""

from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.produce_validation import ValidatedBatch
from moldau.model.errors import TransactionalIdAuthorizationFailed
from moldau.records.header import ATTRIBUTES_FIELD, TRANSACTIONAL
from moldau.storage.log import AppendResult


def append_produced(
    partition: Partition,
    accepted: ValidatedBatch,
    now_ms: int,
    acks_all: bool,
    has_transactional_id: bool,
) -> AppendResult:
    """Append a batch that `produce_validation.accept` returned; raises the error for the producer."""
    batch, header = accepted
    if header[ATTRIBUTES_FIELD] & TRANSACTIONAL and not has_transactional_id:
        raise TransactionalIdAuthorizationFailed("A transactional batch requires a transactional id in the request.")
    if acks_all and partition.role.leading is not None:
        partition.role.leading.check_enough()
    appended = partition.append(batch, header, now_ms)
    partition.traffic.produces += 1
    return appended
