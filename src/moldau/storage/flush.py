"""Bringing a log to the disk: what is to be synced is gathered on the event loop, the syncing may run beside it."""

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from moldau.model.ports import Disk, File
from moldau.storage.checkpoints import LEADER_EPOCHS
from moldau.storage.files import replace_file, sync, sync_directory, sync_path
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.producer_snapshots import Snapshots
from moldau.storage.segments import Segments
from moldau.storage.settings import LogSettings


class EpochCheckpoint(NamedTuple):
    """A leader-epoch checkpoint to be written."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """A job for the executor. `SyncFailed` means that writes are lost; `OSError`, that it may be tried again."""

    end_offset: int
    disk: Disk
    files: list[File]
    paths: list[str]  # of files that are not open; what is gone by then has left the log
    epochs: EpochCheckpoint | None
    folders: list[str]
    truncations: int

    def including(self, path: str, folder: str) -> "Flush":
        """The same, and this file with its name, if there is one: after a clean stop nobody checks it again."""
        if self.disk.exists(path):
            self.paths.append(path)
            self.folders.append(folder)
        return self

    def run(self) -> None:
        if self.epochs is not None:
            replace_file(self.disk, *self.epochs)
        for file in self.files:
            sync(file)
        for path in self.paths:
            with suppress(FileNotFoundError):
                sync_path(self.disk, path)
        for folder in self.folders:
            sync_directory(self.disk, folder)


@dataclass(slots=True)
class FlushState:
    """How far a log is on disk, and what has happened to it since."""

    recovery_point: int
    last_flush_ms: int
    folders: list[str]  # in which names have changed
    truncations: int = 0
    is_truncated: bool = False  # a cut is no less in need of a sync than an append

    def target(self, end_offset: int, active_base_offset: int, settings: LogSettings, now_ms: int) -> int | None:
        """Up to which offset a flush is due now: all of it by count or by time, closed segments always."""
        unflushed = end_offset - self.recovery_point
        if self.is_truncated:
            return end_offset
        if not unflushed:
            return None
        if unflushed >= settings.flush_messages or now_ms - self.last_flush_ms >= settings.flush_ms:
            return end_offset
        if now_ms < self.last_flush_ms:  # the clock was set back, and nobody knows how long it has been
            return end_offset
        return active_base_offset if active_base_offset > self.recovery_point else None

    def begin(
        self, disk: Disk, folder: str, segments: Segments, snapshots: Snapshots, epochs: LeaderEpochs, end_offset: int
    ) -> Flush:
        files, paths = segments.unsynced(self.recovery_point, end_offset)
        if self.is_truncated and not files:
            files.append(segments.active.open_file())
        paths += snapshots.unsynced
        snapshots.unsynced = []  # if this flush fails they stay unsynced: the log can do without them
        checkpoint = EpochCheckpoint(f"{folder}/{LEADER_EPOCHS}", epochs.encode()) if epochs.is_dirty else None
        flush = Flush(end_offset, disk, files, paths, checkpoint, self.folders, self.truncations)
        self.folders = []
        self.is_truncated = epochs.is_dirty = False
        return flush

    def finish(self, flush: Flush) -> None:
        """What was synced counts only if the log has not been truncated meanwhile."""
        if flush.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, flush.end_offset)

    def failed(self, flush: Flush, epochs: LeaderEpochs) -> None:
        """The flush could not run for want of space: what it was to do is still to be done."""
        self.folders += flush.folders
        self.is_truncated = True
        epochs.is_dirty = epochs.is_dirty or flush.epochs is not None

    def note_directory_change(self, folder: str) -> None:
        """Files have been made, renamed or removed there."""
        if folder not in self.folders:
            self.folders.append(folder)

    def restarted(self, offset: int) -> None:
        """The log begins anew: nothing in it that could be lost."""
        self.truncations += 1
        self.recovery_point = offset

    def truncated(self, offset: int) -> None:
        """The log was cut in the segment that begins at `offset`; until a flush, recovery must look at it again."""
        self.truncations += 1
        self.is_truncated = True
        self.recovery_point = min(self.recovery_point, offset)
