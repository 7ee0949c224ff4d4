"""Settings of quotas: the windows of rates, and the rate of new connections."""

from dataclasses import dataclass

from moldau.model.settings import INT_MAX, Kind, Scope, setting


@dataclass(frozen=True, kw_only=True)
class QuotaSettings:
    """Rates are measured over several windows; `moldau.machines.quotas.rates` explains how."""

    quota_window_num: int = setting(
        "quota.window.num",
        11,
        kind=Kind.INT,
        at_least=1,
        at_most=1000,
        doc="Windows over which the rates of client quotas are measured.",
    )
    quota_window_size_seconds: int = setting(
        "quota.window.size.seconds",
        1,
        kind=Kind.INT,
        at_least=1,
        at_most=86_400,
        doc="Length of one window of client quotas; after a silence, a client may use one window's quota at once.",
    )
    controller_quota_window_num: int = setting(
        "controller.quota.window.num",
        11,
        kind=Kind.INT,
        at_least=1,
        at_most=1000,
        doc="Windows whose quota of metadata changes may be used at once.",
    )
    controller_quota_window_size_seconds: int = setting(
        "controller.quota.window.size.seconds",
        1,
        kind=Kind.INT,
        at_least=1,
        at_most=86_400,
        doc="Length of one window of the quota of metadata changes.",
    )
    max_connection_creation_rate: int = setting(
        "max.connection.creation.rate",
        INT_MAX,
        kind=Kind.INT,
        at_least=0,
        scope=Scope.CLUSTER,
        doc="New connections per second on all client listeners together; those beyond are read later.",
    )
