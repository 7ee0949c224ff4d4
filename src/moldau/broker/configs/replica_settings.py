"""Settings of follower fetches, ISR membership, throttles and the replica selector."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import LONG_MAX, Kind, Scope, setting
from moldau.model.units import SECOND_MS, MiB

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"


def _selector(name: str | None) -> str | None:
    if name in (None, "", RACK_AWARE_SELECTOR, LEADER_SELECTOR):
        return None
    return f"it must be {RACK_AWARE_SELECTOR} or {LEADER_SELECTOR}: other classes cannot be loaded here"


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """Replication between brokers."""

    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        30 * SECOND_MS,
        at_least=1,
        doc="A follower that has not been caught up for this long leaves the ISR.",
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms",
        500,
        kind=Kind.INT,
        at_least=0,
        doc="The maximum wait of a follower's fetch if there are too few bytes.",
    )
    replica_fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes",
        1,
        kind=Kind.INT,
        at_least=0,
        doc="The bytes that a follower's fetch waits for.",
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes",
        1 * MiB,
        kind=Kind.INT,
        at_least=0,
        doc="The maximum bytes per partition in a follower's fetch; one whole batch is always returned.",
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes",
        10 * MiB,
        kind=Kind.INT,
        at_least=0,
        doc="The maximum bytes of a follower's fetch; capped at an amount that is written without a pause.",
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms",
        SECOND_MS,
        kind=Kind.INT,
        at_least=0,
        doc="The longest backoff of a follower after a failed fetch; the first ones are shorter.",
    )
    replica_socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms",
        30 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The timeout of a follower's fetch, in addition to its maximum wait.",
    )
    replica_selector_class: str | None = setting(
        "replica.selector.class",
        None,
        check=_selector,
        doc="The selector of a consumer's replica: by default the leader, or by rack with RackAwareReplicaSelector.",
    )
    alter_log_dirs_rate: int = setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG_MAX,
        at_least=0,
        scope=Scope.CLUSTER,
        doc="Bytes per second of moves between log dirs.",
    )
    leader_throttled_rate: int = setting(
        "leader.replication.throttled.rate",
        LONG_MAX,
        at_least=0,
        scope=Scope.CLUSTER,
        doc="Bytes per second that a leader sends to throttled replicas.",
    )
    follower_throttled_rate: int = setting(
        "follower.replication.throttled.rate",
        LONG_MAX,
        at_least=0,
        scope=Scope.CLUSTER,
        doc="Bytes per second that a follower fetches for throttled replicas.",
    )

    @property
    def chooses_by_rack(self) -> bool:
        return self.replica_selector_class == RACK_AWARE_SELECTOR
