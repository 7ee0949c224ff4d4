"""Settings of the controller quorum, the broker lifecycle and leadership balancing."""

from dataclasses import dataclass

from moldau.model.settings import Kind, Scope, setting
from moldau.model.units import MINUTE_MS, SECOND_MS


def _non_empty(parts: tuple[str, ...]) -> str | None:
    return None if parts else "it must not be empty"


@dataclass(frozen=True, kw_only=True)
class QuorumSettings:
    """The controllers. `moldau.model.quorum.resolve_quorum` combines these settings."""

    quorum_voters: tuple[str, ...] = setting(
        "controller.quorum.voters",
        (),
        check=_non_empty,
        doc="The voters of a static quorum, as id@host:port; without it the voters are stored in the metadata log.",
    )
    quorum_bootstrap_servers: tuple[str, ...] = setting(
        "controller.quorum.bootstrap.servers",
        (),
        check=_non_empty,
        doc="Controllers, as host:port, from which nodes discover the quorum leader.",
    )


@dataclass(frozen=True, kw_only=True)
class LifecycleSettings:
    """Registration, heartbeats and shutdown of a broker."""

    broker_heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms",
        2 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How often a broker sends a heartbeat to the controller.",
    )
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        9 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="A broker without a heartbeat for this long is fenced; one whose process ends is fenced at once.",
    )
    initial_registration_timeout_ms: int = setting(
        "initial.broker.registration.timeout.ms",
        MINUTE_MS,
        kind=Kind.INT,
        doc="A broker that cannot register with the active controller within this time stops.",
    )
    cordoned_log_dirs: tuple[str, ...] = setting(
        "cordoned.log.dirs",
        (),
        scope=Scope.PER_BROKER,
        doc="If not empty (such as *), this broker gets no new partitions; set it on the running broker.",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        True,
        doc="Move leaderships to other brokers before this broker stops.",
    )


@dataclass(frozen=True, kw_only=True)
class LeadershipSettings:
    """Preferred leader elections of the active controller."""

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        True,
        doc="Move leadership back to preferred replicas.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        300,
        at_least=1,
        doc="How often the controller checks for non-preferred leaders and for leaderless partitions.",
    )
