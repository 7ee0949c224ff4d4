"""Atomic replacement of segments by a compacted one: after a crash either the old ones or the new one exist.

    .cleaned   written and synced by compaction; recovery deletes it
    .swap      the replacement is decided; completed at the latest when the log is opened next
    (none)     the old files are renamed away, the new ones have their final names

Recovery follows from the names alone. A `.cleaned` log file means that the swap had not begun: delete it. A `.swap` log
file is complete and synced, so recovery removes the segments it covers and renames it. The log file is renamed first,
its indexes after it: they can be rebuilt, and a `.swap` index without its log would be ambiguous.

The steps are renames in one directory, which file systems keep in order; no sync is needed between them.
"""

from moldau.model.ports import Disk
from moldau.storage.batch_scan import CorruptBatch, iterate_headers
from moldau.storage.names import CLEANED, LOG, SEGMENT_SUFFIXES, SWAP, offset_in, path_of
from moldau.storage.renames import Renames
from moldau.storage.segment import Segment


def swap_in(disk: Disk, folder: str, base_offset: int, replaced: list[Segment]) -> list[str]:
    """Replace segments by the cleaned one; returns the paths to unlink later. On failure nothing changes, unless it is
    `UndoFailed`."""
    suffixes = [each for each in SEGMENT_SUFFIXES if disk.exists(path_of(folder, base_offset, each + CLEANED))]
    renames = Renames(disk)
    try:
        for suffix in suffixes:
            renames.rename(path_of(folder, base_offset, suffix + CLEANED), path_of(folder, base_offset, suffix + SWAP))
        paths = [path for segment in replaced for path in renames.mark_deleted(segment)]
        for suffix in suffixes:  # the log first: once it has its name, only renames remain
            renames.rename(path_of(folder, base_offset, suffix + SWAP), path_of(folder, base_offset, suffix))
    except OSError as error:
        raise renames.undo(error) from error
    for segment in replaced:
        segment.close()
    return paths


def cleaned_paths(disk: Disk, folder: str, base_offset: int) -> list[str]:
    """Return the files of a cleaned segment that will not be used."""
    paths = (path_of(folder, base_offset, suffix + CLEANED) for suffix in SEGMENT_SUFFIXES)
    return [path for path in paths if disk.exists(path)]


def remove_cleaned(disk: Disk, folder: str) -> None:
    """Delete unused output of compaction, such as of a failed round."""
    for name in disk.list(folder):
        if name.endswith(CLEANED):
            disk.unlink(f"{folder}/{name}")


def finish_swaps(disk: Disk, folder: str, names: list[str]) -> None:
    """Complete replacements interrupted by a crash, and delete those that had not begun.

    A replacement had not begun if some of its files are still `.cleaned` and all old ones exist. Other `.cleaned` files
    may belong to any round and mean nothing.
    """
    waiting = {offset_in(name) for name in names if name.endswith(CLEANED)}
    there = {offset_in(name) for name in names if name.endswith(LOG)}
    swaps = [name for name in names if name.endswith(SWAP)]
    for name in list(swaps):
        offset = offset_in(name)
        if offset is None or (offset in waiting and offset in there):
            disk.unlink(f"{folder}/{name}")
            swaps.remove(name)
    for name in swaps:
        if name.endswith(LOG + SWAP):
            _remove_replaced(disk, folder, name, names)
    for name in sorted(swaps, key=lambda each: not each.endswith(LOG + SWAP)):
        disk.rename(f"{folder}/{name}", f"{folder}/{name.removesuffix(SWAP)}")


def _remove_replaced(disk: Disk, folder: str, swap_name: str, names: list[str]) -> None:
    """Unlink the segments that a complete compacted one replaces."""
    base_offset = offset_in(swap_name)
    assert base_offset is not None
    end_offset = max(base_offset + 1, _end_of(disk, f"{folder}/{swap_name}"))
    for name in names:
        offset = offset_in(name)
        if name.endswith(SEGMENT_SUFFIXES) and offset is not None and base_offset <= offset < end_offset:
            disk.unlink(f"{folder}/{name}")


def _end_of(disk: Disk, path: str) -> int:
    file = disk.open(path, read_only=True)
    end_offset = 0
    try:
        for _, header in iterate_headers(file, 0, file.size()):
            end_offset = header.next_offset
    except CorruptBatch:
        pass  # it was synced before its rename: the scan of the log reports anything wrong
    finally:
        file.close()
    return end_offset
