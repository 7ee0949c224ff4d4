"""Settings of the transaction state topic, and of transaction verification."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import SHORT_MAX, Kind, Scope, setting
from moldau.model.units import MiB

SEGMENT_BYTES_MIN: Final = 4 * MiB  # a decision, which may change many transactions, must fit into a segment


@dataclass(frozen=True, kw_only=True)
class StateTopicSettings:
    """Creation and loading of `__transaction_state`."""

    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        50,
        kind=Kind.INT,
        at_least=1,
        doc="The number of partitions of the transaction state topic; it maps transactional ids to coordinators, so it "
        "never changes.",
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        3,
        kind=Kind.SHORT,
        at_least=1,
        at_most=SHORT_MAX,
        doc="The replication factor of the transaction state topic; reduced, with a warning, on fewer brokers.",
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        2,
        kind=Kind.INT,
        at_least=1,
        doc="The min.insync.replicas of the transaction state topic; at most its replication factor.",
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        100 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The segment.bytes of the transaction state topic, at least the maximum size of one decision (4 MiB).",
    )
    transaction_state_log_load_buffer_size: int = setting(
        "transaction.state.log.load.buffer.size",
        5 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The bytes per read when a partition of the transaction state topic is loaded.",
    )


@dataclass(frozen=True, kw_only=True)
class PartitionVerificationSettings:
    """Verification of transactions by partitions."""

    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        True,
        scope=Scope.CLUSTER,
        doc="Verify with the coordinator that a transaction is open before a partition appends its first batch.",
    )
