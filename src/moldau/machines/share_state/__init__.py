"""The durable states of share partitions at the share coordinator: a shard of `__share_group_state`."""

from moldau.machines.share_state.machine import PruneLog, ShareStateMachine
from moldau.machines.share_state.records import Record, StateKey
from moldau.machines.share_state.settings import ShareStateSettings

__all__ = ["PruneLog", "Record", "ShareStateMachine", "ShareStateSettings", "StateKey"]
