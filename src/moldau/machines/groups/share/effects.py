"""Requests of the group coordinator to the share coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass

from moldau.model.ids import TopicId


@dataclass(frozen=True, slots=True)
class InitializeStates:
    """Create the durable states of share partitions, then call `decide_states_initialized`."""

    group_id: str
    state_epoch: int
    partitions: Mapping[TopicId, frozenset[int]]
