"""Settings of transactions, by Kafka's names."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import Kind, setting
from moldau.model.units import HOUR_MS, MINUTE_MS, SECOND_MS

IDS_PER_SWEEP_STEP: Final = 1_000
"""Number of transactional ids per sweep step; the rest follow in later steps."""


@dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """Transaction timeouts and expiration of unused transactional ids."""

    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        15 * MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Maximum transaction timeout that a producer may request.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Interval between searches for timed-out transactions to abort.",
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        7 * 24 * HOUR_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Time after which an unused transactional id expires.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        1 * HOUR_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Interval between searches for expired transactional ids to remove.",
    )
