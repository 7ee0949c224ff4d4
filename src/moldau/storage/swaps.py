"""Compacted segments taking the place of others, so that a crash at any moment leaves the old ones or the new ones.

.cleaned   being written; a crash drops it
.swap      complete and synced: from here on the replacement will happen, at the latest when the log is opened
(none)     the old files are gone, the new ones have their names
"""

from moldau.model.ports import Disk


def finish_swaps(disk: Disk, folder: str, names: list[str]) -> list[str]:
    """Complete replacements that a crash has interrupted; the names in the folder afterwards."""
    return names
