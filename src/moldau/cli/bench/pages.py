"""Warm-up of the page cache.

In a virtual machine the first access to a page costs ten times as much as the write itself, also after the host has
reclaimed a page that was free for some seconds. So before a round, as many bytes as it may write are written and
deleted; the kernel reuses the most recently freed pages first.
"""

import os
from pathlib import Path
from typing import Final

from moldau.model.units import MiB

_CHUNK: Final = bytes(MiB)


def touch_pages(folder: Path, size_bytes: int) -> None:
    path = folder / "touched"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(size_bytes // MiB + 1):
            os.write(descriptor, _CHUNK)
    finally:
        os.close(descriptor)
        path.unlink()
