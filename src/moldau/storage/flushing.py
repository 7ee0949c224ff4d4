"""Bringing a log to the disk: what is to be synced is gathered on the event loop, the syncing may run beside it."""

from dataclasses import dataclass
from typing import NamedTuple

from moldau.model.ports import Disk, File
from moldau.storage.checkpoints import LEADER_EPOCHS, replace_file
from moldau.storage.epochs import LeaderEpochs
from moldau.storage.segments import Segments
from moldau.storage.settings import LogSettings


class EpochsFile(NamedTuple):
    """A leader-epoch checkpoint to be written."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """A job for the executor. If `run` raises, the disk has lost writes: never try again, stop."""

    end_offset: int
    disk: Disk
    folder: str
    files: list[File]
    epochs: EpochsFile | None
    has_new_files: bool
    truncations: int

    def run(self) -> None:
        for file in self.files:
            file.fsync()
        if self.epochs is not None:
            replace_file(self.disk, *self.epochs)
        if self.has_new_files:
            self.disk.sync_folder(self.folder)


@dataclass(slots=True)
class Flushing:
    """How far a log is on disk, and what has happened to it since."""

    recovery_point: int
    last_flush_ms: int
    has_new_files: bool = True
    truncations: int = 0

    def target(self, end_offset: int, active_base_offset: int, settings: LogSettings, now_ms: int) -> int | None:
        """Up to which offset a flush is due now: all of it by count or by time, closed segments always."""
        unflushed = end_offset - self.recovery_point
        if not unflushed:
            return None
        if unflushed >= settings.flush_messages or now_ms - self.last_flush_ms >= settings.flush_ms:
            return end_offset
        return active_base_offset if active_base_offset > self.recovery_point else None

    def begin(
        self, disk: Disk, folder: str, segments: Segments, extra: list[File], epochs: LeaderEpochs, end_offset: int
    ) -> Flush:
        files = segments.files_to_sync(self.recovery_point, end_offset) + extra
        checkpoint = EpochsFile(f"{folder}/{LEADER_EPOCHS}", epochs.encode()) if epochs.is_dirty else None
        flush = Flush(end_offset, disk, folder, files, checkpoint, self.has_new_files, self.truncations)
        self.has_new_files = epochs.is_dirty = False
        return flush

    def finish(self, flush: Flush) -> None:
        """What was synced counts only if the log has not been truncated meanwhile."""
        if flush.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, flush.end_offset)

    def truncated(self, offset: int) -> None:
        self.truncations += 1
        self.recovery_point = min(self.recovery_point, offset)
