"""Batches that are appended together in one write."""

from moldau.model.ports import Buffer, File
from moldau.storage.files import roll_back, write_all


class AppendBuffer:
    """Consecutive batches of a file. If the write fails, `failure` keeps the reason until it is taken."""

    __slots__ = ("base_offset", "batches", "failure", "position")

    def __init__(self) -> None:
        self.batches: list[Buffer] = []  # extended directly by appends, after `begin`
        self.position = 0
        self.base_offset = 0  # of the first batch
        self.failure: OSError | None = None

    def __bool__(self) -> bool:
        return bool(self.batches)

    def begin(self, position: int, base_offset: int) -> None:
        """Set the position and base offset of the first batch."""
        self.position, self.base_offset = position, base_offset

    def write(self, file: File, end_position: int) -> None:
        """Write all batches in one call; on failure nothing of them stays in the file."""
        batches, self.batches = self.batches, []
        try:
            taken = file.pwritev(batches, self.position)
            if self.position + taken != end_position:
                write_all(file, b"".join(batches), self.position, taken)
        except OSError as error:
            self.failure = error
            roll_back(file, self.position)
            raise
