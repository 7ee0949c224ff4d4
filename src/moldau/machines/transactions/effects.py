"""Output effects of the transactions machine."""

from dataclasses import dataclass

from moldau.model.ids import ProducerId, TopicPartition


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the end markers of a transaction to its partitions; retry until each is written.

    Performed once the PrepareCommit or PrepareAbort record is committed. The driver reports partitions that are done
    (written, or deleted) to `decide_markers_written` with this same object.
    """

    transactional_id: str
    producer_id: ProducerId
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int  # from 2 on, above every epoch of the transaction's batches
