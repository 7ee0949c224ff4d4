"""File names in a partition's directory: a 20-digit offset and a suffix."""

from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

DELETED: Final = ".deleted"  # no longer part of the log; may still be read
CLEANED: Final = ".cleaned"  # a compacted segment being written
SWAP: Final = ".swap"  # a complete compacted segment being swapped in
TEMPORARY: Final = ".tmp"  # a small file about to replace another

SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)
_DIGITS: Final = 20


def path_of(folder: str, offset: int, suffix: str) -> str:
    return f"{folder}/{offset:020d}{suffix}"


def offset_in(name: str) -> int | None:
    """Return the offset in a file name, or None for other names."""
    digits = name[:_DIGITS]
    if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() and name[_DIGITS : _DIGITS + 1] == ".":
        return int(digits)
    return None
