"""Settings for log dirs: where they are, and when one counts as offline."""

from dataclasses import dataclass

from moldau.model.settings import Kind, Scope, setting
from moldau.model.units import DAY_MS, SECOND_MS


@dataclass(frozen=True, kw_only=True)
class LogDirSettings:
    """Where the log dirs are, and when one counts as offline."""

    log_dirs: tuple[str, ...] = setting(
        "log.dirs",
        (),
        doc="The data directories, one for each disk; when empty, log.dir is used.",
    )
    log_dir: tuple[str, ...] = setting(
        "log.dir",
        ("moldau-data",),
        check=lambda paths: None if paths else "it must not be empty",
        doc="The data directory if log.dirs is empty.",
    )

    metadata_log_dir: str | None = setting(
        "metadata.log.dir",
        None,
        doc="The directory of the metadata log; when empty, the first log dir.",
    )

    log_dir_io_timeout_ms: int = setting(
        "moldau.log.dir.io.timeout.ms",
        10 * SECOND_MS,
        kind=Kind.INT,
        at_least=100,
        doc="A log dir with a write or sync that takes longer is offline: other replicas take over its leaderships. "
        "A broker that is blocked by a write for this long closes its connections.",
    )
    log_dir_full_grace_ms: int = setting(
        "moldau.log.dir.full.grace.ms",
        250,
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

    @property
    def folders(self) -> tuple[str, ...]:
        return self.log_dirs or self.log_dir

    @property
    def metadata_folder(self) -> str:
        return self.metadata_log_dir or self.folders[0]
