"""How files in a partition's folder are called: twenty digits of offset, then what the file is."""

from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

DELETED: Final = ".deleted"  # no longer part of the log; its bytes may still be read by somebody
CLEANED: Final = ".cleaned"  # a compacted segment that is being written
SWAP: Final = ".swap"  # a compacted segment that is complete and is taking the place of others
TEMPORARY: Final = ".tmp"  # a small file on its way to replace another

SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)
_DIGITS: Final = 20


def path_of(folder: str, offset: int, suffix: str) -> str:
    return f"{folder}/{offset:020d}{suffix}"


def offset_in(name: str) -> int | None:
    """The offset a file name begins with, or None for a file that is called otherwise."""
    digits = name[:_DIGITS]
    if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() and name[_DIGITS : _DIGITS + 1] == ".":
        return int(digits)
    return None
