"""Where a node finds its controllers, and how it stays in touch with them."""

from dataclasses import dataclass

from moldau.model.settings import Kind, Scope, setting
from moldau.model.units import MINUTE_MS, SECOND_MS


def _non_empty(parts: tuple[str, ...]) -> str | None:
    return None if parts else "it must not be empty"


@dataclass(frozen=True, kw_only=True)
class QuorumSettings:
    """Who keeps the metadata. `moldau.model.quorum.resolve_quorum` makes sense of them together."""

    quorum_voters: tuple[str, ...] = setting(
        "controller.quorum.voters",
        (),
        check=_non_empty,
        doc="The voters of a fixed quorum, as id@host:port; without it the metadata log itself says who votes.",
    )
    quorum_bootstrap_servers: tuple[str, ...] = setting(
        "controller.quorum.bootstrap.servers",
        (),
        check=_non_empty,
        doc="Controllers, as host:port, that are asked who leads the quorum.",
    )


@dataclass(frozen=True, kw_only=True)
class LifecycleSettings:
    """How a broker stays in its cluster, and leaves it."""

    broker_heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms",
        2 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How often a broker tells the controller that it is alive.",
    )
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        9 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="A broker that is not heard of for so long is fenced; one whose process ends is fenced at once.",
    )
    initial_registration_timeout_ms: int = setting(
        "initial.broker.registration.timeout.ms",
        MINUTE_MS,
        kind=Kind.INT,
        doc="A broker that no active controller has registered for so long after its start gives up and ends.",
    )
    cordoned_log_dirs: tuple[str, ...] = setting(
        "cordoned.log.dirs",
        (),
        scope=Scope.PER_BROKER,
        doc="With anything in it, such as *, this broker gets no new partitions; to be set while it runs.",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        True,
        doc="Hand over what this broker leads before it stops.",
    )


@dataclass(frozen=True, kw_only=True)
class LeadershipSettings:
    """How the active controller keeps leaderships where they belong."""

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        True,
        doc="Move leadership back to preferred replicas.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        300,
        at_least=1,
        doc="How often that is looked into, and whether partitions without a leader could have one.",
    )
