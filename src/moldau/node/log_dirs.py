"""The log dirs of a node: opened, locked and identified at its start.

A log dir that cannot be opened does not keep the node from starting, unless it has the metadata log. An empty one
beside formatted ones, such as a new disk, is formatted.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from moldau.model.errors import InvalidConfig
from moldau.model.ids import NO_EPOCH, DirectoryId
from moldau.model.ports import Disk, Random
from moldau.node.identity import identify
from moldau.storage.log_dir import LogDir, MetaProperties, encode_id

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class NodeLogDirs:
    """The open log dirs by path, in the order of `log.dirs`, and that of the metadata log, which may be another one."""

    metadata: LogDir
    by_path: dict[str, LogDir] = field(default_factory=dict)
    unopened: dict[str, str] = field(default_factory=dict)  # with the cause
    ids: dict[str, DirectoryId] = field(default_factory=dict)
    clean_epochs: dict[str, int | None] = field(default_factory=dict)  # of those that were shut down cleanly
    power_losses: dict[str, bool] = field(default_factory=dict)
    failed_syncs: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def open(cls, disk: Disk, paths: Sequence[str], metadata_path: str) -> "NodeLogDirs":
        """Lock all directories. Raises if that of the metadata log cannot be opened, or if one is in use."""
        opened = cls(LogDir.open(disk, metadata_path))
        try:
            for path in paths:
                opened._add(disk, path)
        except BaseException:
            opened.close()
            raise
        return opened

    def _add(self, disk: Disk, path: str) -> None:
        if path == self.metadata.path:
            self.by_path[path] = self.metadata
            return
        try:
            self.by_path[path] = LogDir.open(disk, path)
        except OSError as error:
            self._give_up(path, error)

    def _give_up(self, path: str, error: OSError) -> None:
        self.unopened[path] = error.strerror or str(error)
        logger.error("Log dir %s is offline until the next start: %s", path, error)
        unusable = self.by_path.pop(path, None)
        if unusable is not None:
            unusable.close()

    @property
    def all(self) -> list[LogDir]:
        """All open directories, that of the metadata log included."""
        others = [each for each in self.by_path.values() if each is not self.metadata]
        return [self.metadata, *others]

    # -- identity

    def identify(self, node_id: int, random: Random, *, may_format: bool) -> MetaProperties:
        """Check the identities, and format empty log dirs beside formatted ones. Return that of the metadata log."""
        known = {path: self._identity_in(path) for path in list(self.by_path)}
        formatted = [path for path, each in known.items() if each is not None and path != self.metadata.path]
        if self.metadata.identity() is None and formatted:
            raise InvalidConfig(
                f"{self.metadata.path} has no metadata log, but {formatted[0]} belongs to a cluster: set "
                "metadata.log.dir to the directory that has it, or restore it."
            )
        own = identify(self.metadata, node_id, random, may_format=may_format)
        for path in list(self.by_path):
            self._identify(path, own, random)
        self._check_ids()
        return own

    def _identity_in(self, path: str) -> MetaProperties | None:
        try:
            return self.by_path[path].identity()
        except OSError as error:
            if path == self.metadata.path:
                raise
            self._give_up(path, error)
            return None

    def _identify(self, path: str, own: MetaProperties, random: Random) -> None:
        if path == self.metadata.path:
            self.ids[path] = own.directory_id
            return
        try:
            self.ids[path] = identify(self.by_path[path], own.node_id, random, own.cluster_id).directory_id
        except OSError as error:
            self._give_up(path, error)

    def _check_ids(self) -> None:
        seen: dict[DirectoryId, str] = {}
        for path, directory in {self.metadata.path: self.ids.get(self.metadata.path), **self.ids}.items():
            if directory is not None and seen.setdefault(directory, path) != path:
                raise InvalidConfig(
                    f"{path} and {seen[directory]} both have the directory id {encode_id(directory)}: one is a copy. "
                    "Remove it from log.dirs."
                )

    # -- how the last run ended

    def take_shutdown_state(self) -> None:
        """Read how the last run left each directory, and remove the clean-shutdown markers."""
        for each in self.all:
            try:
                self.power_losses[each.path] = each.has_lost_power()
                self.failed_syncs[each.path] = each.has_sync_failure()
                self.clean_epochs[each.path] = each.take_clean_shutdown()
            except OSError as error:
                if each is self.metadata:
                    raise
                self._give_up(each.path, error)
                del self.ids[each.path]

    @property
    def has_lost_power(self) -> bool:
        """Whether any directory may lack records of the last run."""
        return any(self.power_losses.values())

    @property
    def clean_epoch(self) -> int | None:
        """The broker epoch of the last run, if it closed every directory cleanly."""
        epochs = set(self.clean_epochs.values())
        return epochs.pop() if len(epochs) == 1 else None

    @property
    def epoch_before(self) -> int:
        """The broker's last epoch, or NO_EPOCH if acknowledged records may have been lost since."""
        if self.clean_epoch is not None:
            return self.clean_epoch
        return NO_EPOCH if self.has_lost_power else self.metadata.last_broker_epoch()

    # -- for the next run

    def record_boot(self) -> None:
        self._in_each("boot", LogDir.record_boot)

    def record_sync_failure(self) -> None:
        for each in self.all:
            each.record_sync_failure()

    def record_sync_failure_in(self, path: str) -> None:
        """A sync failed in this directory, and the node continues with the others."""
        self.by_path[path].record_sync_failure()

    def mark_clean_shutdown(self, broker_epoch: int, is_clean: Callable[[str], bool]) -> bool:
        """Mark the directories whose logs are all closed; return whether all are."""
        clean = [each for each in self.all if is_clean(each.path)]
        for each in clean:
            each.mark_clean_shutdown(broker_epoch)
        return len(clean) == len(self.all)

    def _in_each(self, what: str, work: Callable[[LogDir], None]) -> None:
        for each in self.all:
            try:
                work(each)
            except OSError as error:
                if each is self.metadata:
                    raise
                logger.warning("%s: recording the %s failed: %s", each.path, what, error)

    def close(self) -> None:
        for each in self.all:
            each.close()


def check_paths(folders: Sequence[str]) -> None:
    """Reject a log dir that is named twice."""
    seen: Mapping[str, None] = dict.fromkeys(each.rstrip("/") for each in folders)
    if len(seen) < len(folders):
        raise InvalidConfig(f"log.dirs names a directory twice: {','.join(folders)}.")
