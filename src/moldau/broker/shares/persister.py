"""`SharePersister`: how a share-partition leader reads and writes the durable state of a share partition."""

from typing import NamedTuple, Protocol

from moldau.machines.shares.state import ShareState, StateWrite
from moldau.model.ids import TopicId


class SharePartitionKey(NamedTuple):
    """A partition of a topic, as one share group reads it. Kafka writes it as `group:topicId:partition`."""

    group_id: str
    topic_id: TopicId
    partition: int


class SharePersister(Protocol):
    """The four share-state APIs, for one share partition each. Errors of the response are raised as `KafkaError`:
    NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE and COORDINATOR_LOAD_IN_PROGRESS only after the retries are exhausted.
    """

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """InitializeShareGroupState."""
        ...

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """ReadShareGroupState; fences leaders of older epochs."""
        ...

    async def write(self, key: SharePartitionKey, state_epoch: int, leader_epoch: int, state: StateWrite) -> None:
        """WriteShareGroupState; done when the state is durable. Raises FENCED_STATE_EPOCH or FENCED_LEADER_EPOCH."""
        ...

    async def delete(self, key: SharePartitionKey) -> None:
        """DeleteShareGroupState."""
        ...
