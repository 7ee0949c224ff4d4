"""Flushing a log: collected on the event loop, synced in the executor."""

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
    """A leader epoch checkpoint to write."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """A job for the executor. `SyncFailed`: writes are lost; `OSError`: may be retried."""

    end_offset: int
    disk: Disk
    files: list[File]
    paths: list[str]  # of closed files; a file missing by then has left the log
    epochs: EpochCheckpoint | None
    folders: list[str]
    truncations: int

    def including(self, path: str, folder: str) -> "Flush":
        """Add a file and its directory entry: after a clean shutdown it is not verified again."""
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
    """Flush progress of a log, and changes since the last flush."""

    recovery_point: int
    last_flush_ms: int
    folders: list[str]  # with changed entries
    truncations: int = 0
    is_truncated: bool = False  # a truncation needs a sync like an append

    def target(self, end_offset: int, active_base_offset: int, settings: LogSettings, now_ms: int) -> int | None:
        """Return the offset to flush to now, by count or time; closed segments always. None if nothing is due."""
        unflushed = end_offset - self.recovery_point
        if self.is_truncated:
            return end_offset
        if not unflushed:
            return None
        if unflushed >= settings.flush_messages or now_ms - self.last_flush_ms >= settings.flush_ms:
            return end_offset
        if now_ms < self.last_flush_ms:  # the clock went back: the elapsed time is unknown
            return end_offset
        return active_base_offset if active_base_offset > self.recovery_point else None

    def begin(
        self, disk: Disk, folder: str, segments: Segments, snapshots: Snapshots, epochs: LeaderEpochs, end_offset: int
    ) -> Flush:
        files, paths = segments.unsynced(self.recovery_point, end_offset)
        if self.is_truncated and not files:
            files.append(segments.active.open_file())
        paths += snapshots.unsynced
        snapshots.unsynced = []  # if this flush fails they stay unsynced: the log can be recovered without them
        checkpoint = EpochCheckpoint(f"{folder}/{LEADER_EPOCHS}", epochs.encode()) if epochs.is_dirty else None
        flush = Flush(end_offset, disk, files, paths, checkpoint, self.folders, self.truncations)
        self.folders = []
        self.is_truncated = epochs.is_dirty = False
        return flush

    def finish(self, flush: Flush) -> None:
        """Advance the recovery point, unless the log was truncated meanwhile."""
        if flush.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, flush.end_offset)

    def failed(self, flush: Flush, epochs: LeaderEpochs) -> None:
        """The flush failed for lack of space: its work is still pending."""
        self.folders += flush.folders
        self.is_truncated = True
        epochs.is_dirty = epochs.is_dirty or flush.epochs is not None

    def renamed_to(self, folder: str) -> None:
        """Directories that are not synced yet have another name: sync all again."""
        self.folders = [folder]

    def note_directory_change(self, folder: str) -> None:
        """Record created, renamed or removed files."""
        if folder not in self.folders:
            self.folders.append(folder)

    def restarted(self, offset: int) -> None:
        """The log restarts empty: nothing can be lost."""
        self.truncations += 1
        self.recovery_point = offset

    def truncated(self, offset: int) -> None:
        """The log was truncated in the segment at `offset`; until a flush, recovery must scan it again."""
        self.truncations += 1
        self.is_truncated = True
        self.recovery_point = min(self.recovery_point, offset)
