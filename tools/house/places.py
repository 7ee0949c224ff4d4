"""The rules about things that must be found where people look: the handlers' table, and no private host names."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from house.source import Finding, Source

HANDLERS = "broker/handlers/"
TABLES = ("__init__.py", "table.py")

# Where packages and images come from is the business of whoever installs; the patterns are cut in two so that this
# file does not find itself.
_INDEX = re.compile(
    r"index" + r"-url|py" + r"pi\.[a-z]|pythonhosted\." + r"org|artifactory\.|nexus\.[a-z]|registry\.[a-z0-9-]+\.[a-z]"
    r"|docker\."
    + r"io|ghcr\."
    + r"io|npmjs\."
    + r"(?:org|com)|repo1?\.maven|maven\."
    + r"org|mirrors?\.[a-z0-9-]+\.[a-z]",
    re.IGNORECASE,
)


def names_a_registry(path: str, text: str) -> Iterator[Finding]:
    """No host name of a package index, registry or mirror in any file."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _INDEX.search(line):
            yield Finding(path, number, f"'{found.group()}' names a registry; leave that to the machine's settings")


def is_not_in_the_table(sources: Sequence[Source]) -> Iterator[Finding]:
    """Every handler file has its line in the one table of handlers."""
    handlers = [source for source in sources if source.place.startswith(HANDLERS)]
    tables = [source for source in handlers if PurePosixPath(source.path).name in TABLES]
    listed = {word for table in tables for word in re.findall(r"\w+", table.text)}
    for source in handlers:
        stem = PurePosixPath(source.path).stem
        if _answers_an_api(source) and stem not in listed:
            yield Finding(source.path, 1, f"{stem} is missing in the table of handlers")


def _answers_an_api(source: Source) -> bool:
    return any(getattr(node, "name", "") == "handle" for node in source.tree.body)
