"""The vocabulary of share partitions: record states, and the durable state that a share coordinator keeps."""

from enum import IntEnum
from typing import Final, NamedTuple

UNINITIALIZED_START_OFFSET: Final = -1  # the leader resolves it by `share.auto.offset.reset`


class RecordState(IntEnum):
    """The state of a record in the in-flight window, with Kafka's numbers. ACQUIRED is never persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # its dead letter is not known to be written
    ARCHIVED = 4


class StateBatch(NamedTuple):
    """The durable state of a range of records, as in ReadShareGroupState and WriteShareGroupState."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ShareState(NamedTuple):
    """The durable state of a share partition."""

    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...] = ()


class StateWrite(NamedTuple):
    """The state that a share-partition leader persists in one request."""

    start_offset: int
    delivery_complete_count: int  # records in the window that need no delivery any more (KIP-1226)
    batches: tuple[StateBatch, ...]
