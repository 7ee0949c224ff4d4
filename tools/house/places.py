"""Rules about the handler table and about host names of package registries."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from house.source import Finding, Source

HANDLERS = "broker/handlers/"
TABLES = ("__init__.py", "table.py")

# The sources of packages and images belong to the settings of a machine. The patterns are split so that this file does
# not match itself. `registry.` counts before a domain only: the schema registry is a package of ours.
_INDEX = re.compile(
    r"index" + r"-url|py" + r"pi\.[a-z]|pythonhosted\." + r"org|artifactory\.|nexus\.[a-z]"
    r"|registry\.[a-z0-9.-]+\.(?:com|net|org|io|dev|cloud|corp|internal|local)\b"
    r"|docker\."
    + r"io|ghcr\."
    + r"io|npmjs\."
    + r"(?:org|com)|repo1?\.maven|maven\."
    + r"org|mirrors?\.[a-z0-9-]+\.[a-z]",
    re.IGNORECASE,
)


def names_package_registry(path: str, text: str) -> Iterator[Finding]:
    """No file contains the host name of a package index, registry or mirror."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _INDEX.search(line):
            yield Finding(path, number, f"'{found.group()}' is a package registry: leave it to the machine's settings")


def is_missing_in_handler_table(sources: Sequence[Source]) -> Iterator[Finding]:
    """Every handler module is listed in the handler table."""
    handlers = [source for source in sources if source.place.startswith(HANDLERS)]
    tables = [source for source in handlers if PurePosixPath(source.path).name in TABLES]
    listed = {word for table in tables for word in re.findall(r"\w+", table.text)}
    for source in handlers:
        stem = PurePosixPath(source.path).stem
        if _is_handler(source) and stem not in listed:
            yield Finding(source.path, 1, f"{stem} is missing in the handler table")


def _is_handler(source: Source) -> bool:
    return any(getattr(node, "name", "") == "handle" for node in source.tree.body)
