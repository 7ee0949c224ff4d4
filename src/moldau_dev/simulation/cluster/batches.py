"""Complete batches of the logs on a simulated disk, read without its faults."""

from collections.abc import Iterator

from moldau.records.header import HEADER_BYTES, LOG_OVERHEAD, BatchHeader, read_header
from moldau.testing.disk import SimulatedDisk
from moldau.testing.inodes import Folder, Inode


class BatchesOnDisk:
    """Reads each batch of one partition once, as long as the log is not truncated."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk, self._path = disk, path
        self._segment = ""
        self._position = 0  # after the last batch read

    def read(self, end_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield the batches not read before that end below this offset."""
        folder = self._disk.node(self._path)
        segments = _segments(folder) if isinstance(folder, Folder) else {}
        for name in sorted(segments):
            if name > self._segment:
                self._segment, self._position = name, 0
            if name < self._segment:
                continue
            content = segments[name].content
            while _is_whole(content, self._position):
                header = read_header(content, self._position)
                if header.last_offset >= end_offset:
                    return
                batch = bytes(content[self._position : self._position + header.size_bytes])
                self._position += len(batch)
                yield header, batch


def _segments(folder: Folder) -> dict[str, Inode]:
    return {name: node for name, node in folder.entries.items() if name.endswith(".log") and isinstance(node, Inode)}


def _is_whole(content: bytearray, position: int) -> bool:
    """Whether a complete batch starts here; preallocated space may follow the last one."""
    if len(content) < position + HEADER_BYTES:
        return False
    length = int.from_bytes(content[position + 8 : position + LOG_OVERHEAD], "big")
    return HEADER_BYTES - LOG_OVERHEAD <= length <= len(content) - position - LOG_OVERHEAD
