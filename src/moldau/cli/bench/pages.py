"""Page cache that has been touched.

A virtual machine pays dearly for the first touch of each page, and again after its host took a page back that was free
for some seconds: ten times what the write itself costs. So before a round, as many bytes as it may write are written
and deleted; the kernel hands out the pages that came free last.
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
