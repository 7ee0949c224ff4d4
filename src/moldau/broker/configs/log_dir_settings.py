"""Settings for a log dir that cannot be written."""

from dataclasses import dataclass

from moldau.model.settings import Kind, Scope, setting
from moldau.model.units import DAY_MS, SECOND_MS


@dataclass(frozen=True, kw_only=True)
class LogDirSettings:
    """When a log dir counts as offline."""

    log_dir_io_timeout_ms: int = setting(
        "moldau.log.dir.io.timeout.ms",
        10 * SECOND_MS,
        kind=Kind.INT,
        at_least=100,
        doc="A log dir with a write or sync that takes longer is offline: other replicas take over its leaderships.",
    )
    log_dir_full_grace_ms: int = setting(
        "moldau.log.dir.full.grace.ms",
        500,
        kind=Kind.INT,
        at_least=0,
        doc="A log dir without space for this long is offline until there is space.",
    )
    scrub_interval_ms: int = setting(
        "moldau.log.scrub.interval.ms",
        7 * DAY_MS,
        kind=Kind.LONG,
        at_least=-1,
        scope=Scope.CLUSTER,
        doc="Closed segments are read and verified once in this time, at most 3% of the time; -1: never.",
    )
