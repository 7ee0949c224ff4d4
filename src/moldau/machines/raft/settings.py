"""Settings of the metadata quorum, by Kafka's names."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import Kind, setting
from moldau.model.units import MINUTE_MS, SECOND_MS

CHECK_QUORUM_FACTOR: Final = 1.5
"""A leader without a majority resigns after this many fetch timeouts; its followers start an election before that."""

FIRST_ELECTION_MS: Final = 100
"""A starting voter without a known leader sends pre-votes within this time: they do not disturb an existing leader."""

OBSERVER_SESSION_MS: Final = 5 * MINUTE_MS
"""Session timeout of an observer, counted from its last fetch."""

OBSERVERS_MAX: Final = 1_000
"""Maximum number of observers tracked by a leader; the least recent is dropped first."""

VOTER_SETS_KEPT: Final = 64
"""Number of voter sets kept below the high watermark, for snapshots taken there."""


@dataclass(frozen=True, kw_only=True)
class QuorumSettings:
    """Timeouts of the metadata quorum."""

    election_timeout_ms: int = setting(
        "controller.quorum.election.timeout.ms",
        SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Time a voter waits for votes or a leader before it starts an election; randomized up to twice as long.",
    )
    election_backoff_max_ms: int = setting(
        "controller.quorum.election.backoff.max.ms",
        SECOND_MS,
        kind=Kind.INT,
        at_least=0,
        doc="Maximum backoff after an election without a winner.",
    )
    fetch_timeout_ms: int = setting(
        "controller.quorum.fetch.timeout.ms",
        2 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="A follower whose fetches fail for this long starts an election; a leader without fetches resigns.",
    )
    request_timeout_ms: int = setting(
        "controller.quorum.request.timeout.ms",
        2 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Timeout of requests between members of the quorum.",
    )
    retry_backoff_ms: int = setting(
        "controller.quorum.retry.backoff.ms",
        20,
        kind=Kind.INT,
        at_least=0,
        doc="Backoff before a member of the quorum retries a request.",
    )
