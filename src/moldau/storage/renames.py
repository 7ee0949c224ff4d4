"""Several renames of which all take effect or none, unless the disk allows no renames at all any more."""

from moldau.model.ports import Disk
from moldau.storage.names import DELETED, SEGMENT_SUFFIXES
from moldau.storage.segment import Segment


class UndoFailed(OSError):
    """A rename failed, and undoing the ones before it did too: the files must be sorted out as after a crash."""


class Renames:
    """Remembers what it has renamed. An error is to be handled by `undo`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._done: list[tuple[str, str]] = []

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)
        self._done.append((source, target))

    def mark_deleted(self, segment: Segment) -> list[str]:
        """Rename the files of a segment out of the log; returns the paths to unlink later."""
        paths = [path for path in map(segment.path, SEGMENT_SUFFIXES) if self._disk.exists(path)]
        for path in paths:
            self.rename(path, path + DELETED)
        return [path + DELETED for path in paths]

    def undo(self, error: OSError) -> OSError:
        """Give the files their old names, the last one first; returns the error to raise."""
        try:
            for source, target in reversed(self._done):
                self._disk.rename(target, source)
        except OSError as second:
            return UndoFailed(second.errno, f"{error}; undoing it failed: {second}")
        return error
