"""Files that users hand to commands."""

from pathlib import Path

from moldau.cli.errors import wrong_usage


def text_of(path: Path) -> str:
    """What the file says; a complaint if it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise wrong_usage(f"{path} is no text in UTF-8: {error.reason} at byte {error.start}") from None
