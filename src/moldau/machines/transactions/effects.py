"""What a decision about transactions asks its driver to do."""

from dataclasses import dataclass

from moldau.model.ids import ProducerId, TopicPartition


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the end of a transaction to its partitions, again and again until each has it.

    Performed once the decision to end it is committed. What is written, or can never be because the topic is gone, is
    told to `decide_markers_written` with this very effect.
    """

    transactional_id: str
    producer_id: ProducerId
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int  # from 2 on, the epoch is above every epoch that the transaction wrote with
