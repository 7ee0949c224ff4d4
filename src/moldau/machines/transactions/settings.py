"""What rules transactions, by Kafka's names."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import Kind, setting
from moldau.model.units import HOUR_MS, MINUTE_MS, SECOND_MS

IDS_PER_SLICE: Final = 1_000
"""How many transactional ids one decision looks at or forgets; the rest follow soon after."""


@dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """How long a transaction may last, and how long an unused transactional id is known."""

    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        15 * MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The longest transaction timeout that a producer may ask for.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How often transactions are searched for those that lasted longer than their timeout, to abort them.",
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        7 * 24 * HOUR_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How long a transactional id that nobody uses is known.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        1 * HOUR_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How often transactional ids are searched for those that nobody used for long, to forget them.",
    )
