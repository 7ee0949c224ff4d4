"""What rules the quorum, by Kafka's names."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import Kind, setting
from moldau.model.units import MINUTE_MS, SECOND_MS

CHECK_QUORUM_FACTOR: Final = 1.5
"""A leader resigns after this many fetch time-outs without a majority: its followers stand for election before that."""

FIRST_ROUND_MS: Final = 100
"""A voter that starts and knows no leader asks the others within this time: a pre-vote disturbs nobody."""

OBSERVER_SESSION_MS: Final = 5 * MINUTE_MS
"""An observer that has not fetched for this long is forgotten."""

OBSERVERS_MAX: Final = 1_000
"""How many observers a leader keeps the progress of; the one that was silent longest goes first."""

VOTER_SETS_KEPT: Final = 64
"""How many voter sets are remembered below the high watermark, for snapshots that are taken there."""


@dataclass(frozen=True, kw_only=True)
class QuorumSettings:
    """How long voters wait for each other."""

    election_timeout_ms: int = setting(
        "controller.quorum.election.timeout.ms",
        SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How long a voter waits for votes, or for a leader, before it begins anew; up to twice as long by chance.",
    )
    election_backoff_max_ms: int = setting(
        "controller.quorum.election.backoff.max.ms",
        SECOND_MS,
        kind=Kind.INT,
        at_least=0,
        doc="The longest pause after an election that nobody won.",
    )
    fetch_timeout_ms: int = setting(
        "controller.quorum.fetch.timeout.ms",
        2 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="A follower whose fetches fail for this long stands for election; a leader without fetches resigns.",
    )
    request_timeout_ms: int = setting(
        "controller.quorum.request.timeout.ms",
        2 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How long a member of the quorum waits for an answer.",
    )
    retry_backoff_ms: int = setting(
        "controller.quorum.retry.backoff.ms",
        20,
        kind=Kind.INT,
        at_least=0,
        doc="The pause before a member of the quorum asks again.",
    )
