"""Data folders that users name: whose they are, said before anything is done with them."""

from pathlib import Path

from moldau.cli.errors import Complaint
from moldau.storage.log_dir import META_PROPERTIES, CorruptMetaProperties, MetaProperties


def identity_in(folder: Path) -> MetaProperties | None:
    """Whose folder this is, None if nobody's yet; a complaint that names the file where it says nothing sensible."""
    path = folder / META_PROPERTIES
    if not path.exists():
        return None
    try:
        return MetaProperties.decode(path.read_bytes())
    except CorruptMetaProperties as error:
        raise Complaint(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise Complaint(
            f"{path} is no text in UTF-8, so it does not tell whose folder this is ({error.reason} at byte "
            f"{error.start}): restore the file, or choose another folder"
        ) from None
