"""Bringing a log to the disk: what is to be synced is gathered on the event loop, the syncing may run beside it."""

from dataclasses import dataclass
from typing import NamedTuple

from moldau.model.ports import Disk, File
from moldau.storage.checkpoints import replace_file


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
