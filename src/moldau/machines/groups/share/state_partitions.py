"""The share partitions of a group whose durable state exists at the share coordinator.

A partition is first *initializing*: the group coordinator asks the share coordinator to create its state. Once that is
durable the partition is *initialized*, and only then may it be assigned to members. A topic whose state is removed is
*deleting* until the share coordinator has confirmed the deletion. All three are replicated, so that the next group
coordinator resumes what this one has begun.
"""

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from moldau.model.ids import TopicId
from moldau.wire import messages


class TopicState(NamedTuple):
    """The partitions of a topic in one of the phases."""

    name: str
    partitions: frozenset[int]


class StatePartitions(NamedTuple):
    """The partitions by phase. Immutable; topics without partitions are left out."""

    initializing: Mapping[TopicId, TopicState] = {}
    initialized: Mapping[TopicId, TopicState] = {}
    deleting: Mapping[TopicId, str] = {}

    def is_initialized(self, topic_id: TopicId, index: int) -> bool:
        state = self.initialized.get(topic_id)
        return state is not None and index in state.partitions

    def missing(self, topic_id: TopicId, partitions: int) -> frozenset[int]:
        """Return the partitions of a topic whose states neither exist nor are being created."""
        known = self._indexes(self.initializing, topic_id) | self._indexes(self.initialized, topic_id)
        return frozenset(range(partitions)) - known

    def begin(self, topic_id: TopicId, name: str, indexes: Set[int]) -> "StatePartitions":
        """Mark partitions as initializing; that overrides a deletion which is not confirmed."""
        held = self._indexes(self.initializing, topic_id)
        state = TopicState(name, held | indexes)
        deleting = {each: name for each, name in self.deleting.items() if each != topic_id}
        return self._replace(initializing={**self.initializing, topic_id: state}, deleting=deleting)

    def complete(self, topic_id: TopicId, name: str, indexes: Set[int]) -> "StatePartitions":
        """Mark partitions as initialized."""
        held = self._indexes(self.initialized, topic_id)
        states = _without(self.initializing, topic_id, indexes)
        done = TopicState(name, held | indexes)
        return self._replace(initializing=states, initialized={**self.initialized, topic_id: done})

    def begin_deletion(self, topics: Mapping[TopicId, str]) -> "StatePartitions":
        """Mark topics as deleting."""
        rest = self.forget(topics)
        return rest._replace(deleting={**rest.deleting, **topics})

    def forget(self, topic_ids: Iterable[TopicId]) -> "StatePartitions":
        """Remove topics, because they or their states are deleted."""
        gone = frozenset(topic_ids)
        return StatePartitions(
            {each: state for each, state in self.initializing.items() if each not in gone},
            {each: state for each, state in self.initialized.items() if each not in gone},
            {each: name for each, name in self.deleting.items() if each not in gone},
        )

    def topic_ids(self) -> frozenset[TopicId]:
        return frozenset[TopicId]().union(self.initializing, self.initialized, self.deleting)

    @staticmethod
    def _indexes(states: Mapping[TopicId, TopicState], topic_id: TopicId) -> frozenset[int]:
        state = states.get(topic_id)
        return frozenset() if state is None else state.partitions


def _without(states: Mapping[TopicId, TopicState], topic_id: TopicId, indexes: Set[int]) -> dict[TopicId, TopicState]:
    rest = dict(states)
    state = rest.pop(topic_id, None)
    if state is not None and state.partitions - indexes:
        rest[topic_id] = state._replace(partitions=state.partitions - indexes)
    return rest


def read_state_partitions(value: messages.ShareGroupStatePartitionMetadataValue) -> StatePartitions:
    """Return the state that a record holds."""
    return StatePartitions(
        _topics(value.initializing_topics),
        _topics(value.initialized_topics),
        {TopicId(each.topic_id): each.topic_name for each in value.deleting_topics},
    )


def _topics(
    topics: "Iterable[messages.ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo]",
) -> dict[TopicId, TopicState]:
    return {
        TopicId(each.topic_id): TopicState(each.topic_name, frozenset(each.partitions))
        for each in topics
        if each.partitions
    }
