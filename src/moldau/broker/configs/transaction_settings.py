"""What rules the topic of transactions' states, and what partitions insist on."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import SHORT_MAX, Kind, Scope, setting
from moldau.model.units import MiB

SEGMENT_BYTES_MIN: Final = 4 * MiB  # a decision, which may speak of many transactions, must fit into a segment


@dataclass(frozen=True, kw_only=True)
class StateTopicSettings:
    """How `__transaction_state` is made, when the first transaction needs it, and how it is read at a start."""

    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        50,
        kind=Kind.INT,
        at_least=1,
        doc="How many partitions the topic of transactions' states gets; who coordinates a transactional id depends on "
        "it, so it never changes.",
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        3,
        kind=Kind.SHORT,
        at_least=1,
        at_most=SHORT_MAX,
        doc="How many replicas that topic gets; fewer, with a warning, where there are fewer brokers.",
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        2,
        kind=Kind.INT,
        at_least=1,
        doc="How many replicas of it must be in sync for a transaction to go on; never more than it has.",
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        100 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The segment.bytes of that topic, never less than what one decision may take (4 MiB).",
    )
    transaction_state_log_load_buffer_size: int = setting(
        "transaction.state.log.load.buffer.size",
        5 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="How many bytes of it are read at once when it is loaded.",
    )


@dataclass(frozen=True, kw_only=True)
class PartitionVerificationSettings:
    """What a partition insists on before records of a transaction are taken."""

    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        True,
        scope=Scope.CLUSTER,
        doc="Whether a partition asks the coordinator if a transaction is open before its first records are taken.",
    )
