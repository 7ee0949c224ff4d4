"""Files and data directories named on the command line: read them, or fail with their path."""

from pathlib import Path

from moldau.cli.errors import CommandError, usage_error
from moldau.storage.log_dir import META_PROPERTIES, CorruptMetaProperties, MetaProperties


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise usage_error(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


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
