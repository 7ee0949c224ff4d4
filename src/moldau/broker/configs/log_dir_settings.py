"""Settings for a log dir that cannot be written."""

from dataclasses import dataclass

from moldau.model.settings import Kind, setting
from moldau.model.units import SECOND_MS


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
