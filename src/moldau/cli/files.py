"""Files and data directories named on the command line: read them, or fail with their path."""

import os
from pathlib import Path
from typing import Final

from moldau.cli.errors import CommandError, usage_error
from moldau.storage.log_dir import (
    BOOT_ID,
    BROKER_EPOCH,
    CLEAN_SHUTDOWN,
    INCARNATION,
    LOCK,
    META_PROPERTIES,
    CorruptMetaProperties,
    MetaProperties,
)

FOREIGN_NAMES_SHOWN: Final = 3
# Interrupted formatting leaves files without meta.properties; a new file system has lost+found.
_LEFT_BY_FORMAT: Final = frozenset(
    {LOCK, BOOT_ID, BROKER_EPOCH, INCARNATION, CLEAN_SHUTDOWN, "__cluster_metadata-0", "lost+found", ".DS_Store"}
)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise usage_error(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)


def read_identity(directory: Path) -> MetaProperties | None:
    """Return the cluster and node that a data directory belongs to, or None if it is not formatted."""
    path = directory / META_PROPERTIES
    if not path.exists():
        return None
    try:
        return MetaProperties.decode(path.read_bytes())
    except CorruptMetaProperties as error:
        raise CommandError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise CommandError(
            f"{path} is not UTF-8 text, so the owner of the directory is unknown ({error.reason} at byte "
            f"{error.start}): restore the file, or choose another directory"
        ) from None


def check_not_foreign(directory: Path) -> None:
    """Reject an unformatted directory with unrelated files: a node would write its data among them."""
    if not directory.is_dir() or read_identity(directory) is not None:
        return
    names = sorted(each.name for each in directory.iterdir())
    foreign = [name for name in names if name not in _LEFT_BY_FORMAT and not name.startswith(META_PROPERTIES)]
    if foreign:
        shown = ", ".join(foreign[:FOREIGN_NAMES_SHOWN]) + (", …" if len(foreign) > FOREIGN_NAMES_SHOWN else "")
        raise CommandError(
            f"{directory} is not a data directory but holds other files ({shown}): choose an empty or new directory "
            f"with --data; to use this one all the same: moldau storage format --data {directory}"
        )
