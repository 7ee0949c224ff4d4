"""Settings of the share coordinator's machine, by Kafka's names."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import Kind, setting
from moldau.model.units import MINUTE_MS

KEYS_PER_STEP: Final = 100
"""Share partitions per step of a cleanup or of a round of snapshots; the rest follow in later steps."""

STATE_BATCHES_MAX: Final = 20_000
"""Maximum number of ranges in the state of a share partition: twice its maximum number of record locks."""

RETAINED_RECORDS_MIN: Final = 10_000
"""A log with fewer records is not worth the snapshots that would let it be pruned."""


@dataclass(frozen=True, kw_only=True)
class ShareStateSettings:
    """Snapshots of share partitions, and pruning of the log behind them."""

    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        kind=Kind.INT,
        at_least=0,
        at_most=500,
        doc="Updates between two snapshots of share state.",
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        5 * MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        is_internal=True,
        doc="Interval of snapshots of cold share partitions.",
    )
    share_coordinator_state_topic_prune_interval_ms: int = setting(
        "share.coordinator.state.topic.prune.interval.ms",
        5 * MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        is_internal=True,
        doc="Interval at which old records of the share state topic are deleted.",
    )
