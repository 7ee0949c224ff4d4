"""Batches that were appended and are to be written together."""

from moldau.model.ports import Buffer, File
from moldau.storage.files import roll_back, write_all


class AppendBuffer:
    """They follow each other in one file. If the disk refuses them, `failure` keeps the reason until it is taken."""

    __slots__ = ("base_offset", "batches", "failure", "position")

    def __init__(self) -> None:
        self.batches: list[Buffer] = []  # an append extends them itself, after `begin`
        self.position = 0
        self.base_offset = 0  # of the first
        self.failure: OSError | None = None

    def __bool__(self) -> bool:
        return bool(self.batches)

    def begin(self, position: int, base_offset: int) -> None:
        """Where the first of them goes."""
        self.position, self.base_offset = position, base_offset

    def write(self, file: File, end_position: int) -> None:
        """In one call; nothing of them is left in the file if that fails."""
        batches, self.batches = self.batches, []
        try:
            taken = file.pwritev(batches, self.position)
            if self.position + taken != end_position:
                write_all(file, b"".join(batches), self.position, taken)
        except OSError as error:
            self.failure = error
            roll_back(file, self.position)
            raise
