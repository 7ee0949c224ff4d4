"""Start offsets of leader epochs in a log, and their checkpoint file."""

from bisect import bisect_left, bisect_right

from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.model.ports import Disk
from moldau.storage.checkpoints import LEADER_EPOCHS, CorruptCheckpoint, decode_lines, encode_lines
from moldau.storage.files import replace_file


class LeaderEpochs:
    """Epochs and their start offsets, both strictly increasing."""

    __slots__ = ("_disk", "_path", "epochs", "is_dirty", "latest", "start_offsets")

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = f"{folder}/{LEADER_EPOCHS}"
        self.epochs: list[int] = []
        self.start_offsets: list[int] = []
        self.latest = NO_EPOCH
        self.is_dirty = False  # the file is outdated; `write` must precede a recovery point beyond it

    def renamed_to(self, folder: str) -> None:
        self._path = f"{folder}/{LEADER_EPOCHS}"

    def load(self) -> None:
        """Read the file; `CorruptCheckpoint` if it is invalid."""
        if not self._disk.exists(self._path):
            return
        try:
            pairs = [(int(epoch), int(offset)) for epoch, offset in decode_lines(self._disk.read(self._path))]
        except ValueError as error:
            raise CorruptCheckpoint(str(error)) from None
        for epoch, offset in pairs:
            if epoch <= self.latest or (self.start_offsets and offset < self.start_offsets[-1]):
                raise CorruptCheckpoint(f"epoch {epoch} at offset {offset} is out of order")
            self.epochs.append(epoch)
            self.start_offsets.append(offset)
            self.latest = epoch

    def encode(self) -> bytes:
        return encode_lines(f"{epoch} {offset}" for epoch, offset in zip(self.epochs, self.start_offsets, strict=True))

    def write(self, data: bytes | None = None) -> None:
        replace_file(self._disk, self._path, self.encode() if data is None else data)
        self.is_dirty = False

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record a batch of a new epoch at `start_offset`, dropping contradicting entries."""
        if epoch < 0 or epoch == self.latest:
            return
        while self.epochs and (self.epochs[-1] >= epoch or self.start_offsets[-1] >= start_offset):
            self.epochs.pop()
            self.start_offsets.pop()
        self.epochs.append(epoch)
        self.start_offsets.append(start_offset)
        self._changed()

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        if epoch == NO_EPOCH or not self.epochs or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        following = bisect_right(self.epochs, epoch)
        known = self.epochs[following - 1] if following else epoch
        return known, self.start_offsets[following]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch at an offset, or -1."""
        entry = bisect_right(self.start_offsets, offset) - 1
        return self.epochs[entry] if entry >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop epochs that start at `end_offset` or later."""
        kept = bisect_left(self.start_offsets, end_offset)
        if kept < len(self.epochs):
            del self.epochs[kept:]
            del self.start_offsets[kept:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop epochs that end before `start_offset`; the epoch at that offset then starts there."""
        first = bisect_right(self.start_offsets, start_offset) - 1
        if first < 0 or (first == 0 and self.start_offsets[0] == start_offset):
            return
        del self.epochs[:first]
        del self.start_offsets[:first]
        self.start_offsets[0] = start_offset
        self._changed()

    def clear(self) -> None:
        self.truncate_from_end(-1)

    def _changed(self) -> None:
        self.latest = self.epochs[-1] if self.epochs else NO_EPOCH
        self.is_dirty = True
