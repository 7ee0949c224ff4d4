"""Properties files of client settings, as Kafka's tools read them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moldau.cli.errors import usage_error
from moldau.cli.files import read_text

_COMMENTS: Final = ("#", "!")
_PROPERTY: Final = re.compile(r"([^\s=:]+)\s*(?:[=:]\s*|\s)(.*)|([^\s=:]+)")


def read_client_properties(path: Path) -> dict[str, str]:
    return properties(read_text(path), path)


def properties(text: str, path: Path) -> dict[str, str]:
    """Parse a properties file as Java does: comments, continuation lines, and `=`, `:` or a blank as separator."""
    found = {}
    for line in _whole_lines(text):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise usage_error(f"{path}: {line!r} is not a setting; write it as KEY=VALUE")
        found[match[1] or match[3]] = (match[2] or "").strip()
    return found


def _whole_lines(text: str) -> Iterator[str]:
    partial = ""
    for line in text.splitlines():
        if not partial and line.lstrip().startswith(_COMMENTS):
            continue  # a comment has no continuation lines
        partial += line.strip()
        if partial.endswith("\\"):
            partial = partial[:-1]
            continue
        if partial:
            yield partial
        partial = ""
    if partial:
        yield partial
