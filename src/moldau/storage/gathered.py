"""Batches that were appended and are to be written together."""

from moldau.model.ports import Buffer, File
from moldau.storage.files import take_back, write_all


class Gathered:
    """They follow each other in one file. If the disk refuses them, `failure` keeps the reason until it is taken."""

    __slots__ = ("_batches", "base_offset", "failure", "position")

    def __init__(self) -> None:
        self._batches: list[Buffer] = []
        self.position = 0
        self.base_offset = 0  # of the first
        self.failure: OSError | None = None

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: Buffer, position: int, base_offset: int) -> None:
        if not self._batches:
            self.position, self.base_offset = position, base_offset
        self._batches.append(batch)

    def write(self, file: File, end_position: int) -> None:
        """In one call; nothing of them is left in the file if that fails."""
        batches, self._batches = self._batches, []
        try:
            taken = file.pwritev(batches, self.position)
            if self.position + taken != end_position:
                write_all(file, b"".join(batches), self.position, taken)
        except OSError as error:
            self.failure = error
            take_back(file, self.position)
            raise
