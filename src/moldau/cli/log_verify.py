"""`moldau log verify`: checks segments and their indexes in a data directory, also while a broker uses it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from moldau.model.ports import Disk
from moldau.storage.batch_verifier import BatchVerifier
from moldau.storage.checkpoints import CorruptCheckpoint
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.names import LOG, offset_in
from moldau.storage.scrub import WHOLE, ScrubJob, verify_slice
from moldau.storage.segment import RELATIVE_OFFSET_MAX

Entry = dict[str, Any]


def log_folders(path: Path) -> list[Path]:
    """Return the directories with segments in a path: a log, or a data directory."""
    return sorted({each.parent for each in path.rglob(f"*{LOG}") if offset_in(each.name) is not None})


def verify_log(disk: Disk, folder: Path) -> Iterator[Entry]:
    """Yield an entry for each segment, with its corrupt ranges."""
    names = sorted(each.name for each in folder.glob(f"*{LOG}") if offset_in(each.name) is not None)
    bases = [offset for offset in map(offset_in, names) if offset is not None]
    epochs = LeaderEpochs(disk, str(folder))
    with suppress(CorruptCheckpoint):  # the broker restores it
        epochs.load()
    for number, base_offset in enumerate(bases):
        is_last = number == len(bases) - 1
        bound = base_offset + RELATIVE_OFFSET_MAX if is_last else bases[number + 1]
        try:
            size = disk.size(str(folder / names[number]))
            verifier = BatchVerifier(base_offset, bound, size, frozenset(epochs.epochs))
            verifier.next_offset = base_offset
            result = verify_slice(disk, ScrubJob(str(folder), verifier, WHOLE))
        except FileNotFoundError:
            continue  # a broker deleted it meanwhile
        found = result.verifier.corrupt
        # A broker may be writing the end of the last segment; after a crash it is truncated there.
        is_torn = is_last and bool(found) and found[-1].end_position >= size
        corrupt = found[:-1] if is_torn else found
        yield {
            "segment": str(folder / names[number]),
            "bytes": size,
            "is_valid": not corrupt and (is_last or not result.has_invalid_index),
            "has_valid_indexes": is_last or not result.has_invalid_index,
            "incomplete_end_at": found[-1].position if is_torn else None,
            "corrupt": [
                {
                    "first_offset": each.offset,
                    "last_offset": each.end_offset - 1,
                    "position": each.position,
                    "bytes": each.end_position - each.position,
                    "reason": each.reason,
                }
                for each in corrupt
            ],
        }
