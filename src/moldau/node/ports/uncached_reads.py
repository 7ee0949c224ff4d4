"""Reads of files past the page cache, so that a background scan neither evicts hot pages nor reads only memory.

Linux reads with O_DIRECT from the medium, into aligned memory. Where a file system cannot do that, or the system has no
O_DIRECT, the read goes through the page cache, and what was not there before is dropped again.
"""

import errno
import mmap
import os
from typing import Final

_ALIGNMENT: Final = 4096
_UNSUPPORTED: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


def read_past_cache(path: str, length: int, position: int) -> bytes:
    """Return the bytes at a position; fewer only at the end of the file."""
    if hasattr(os, "O_DIRECT"):
        try:
            return _read_directly(path, length, position)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    return _read_and_drop(path, length, position)


def _read_directly(path: str, length: int, position: int) -> bytes:
    begin = position - position % _ALIGNMENT
    size = (position + length - begin + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    try:
        if length <= 0:
            return b""
        with mmap.mmap(-1, size) as buffer, memoryview(buffer) as view:  # its memory is aligned
            have = 0
            while have < size:
                with view[have:] as rest:
                    count = os.preadv(descriptor, [rest], begin + have)
                have += count
                if not count or have % _ALIGNMENT:  # the end of the file
                    break
            return bytes(view[position - begin : min(have, position - begin + length)])
    finally:
        os.close(descriptor)


def _read_and_drop(path: str, length: int, position: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        was_cached = _is_cached(descriptor, position)
        parts, have = [], 0
        while have < length:
            part = os.pread(descriptor, length - have, position + have)
            if not part:
                break
            parts.append(part)
            have += len(part)
        if not was_cached and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, position, have, os.POSIX_FADV_DONTNEED)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _is_cached(descriptor: int, position: int) -> bool:
    """Whether the page at a position is cached; True where the system cannot tell, so that nothing is dropped."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    try:
        os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True
