"""The table of house rules."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from house import names, places, ports, shape
from house.source import ROOT, Finding, Source, repository

FileRule = Callable[[Source], Iterator[Finding]]
RepositoryRule = Callable[[Sequence[Source]], Iterator[Finding]]
TextRule = Callable[[str, str], Iterator[Finding]]

FILE_RULES: tuple[FileRule, ...] = (
    ports.bypasses_ports,
    names.has_empty_name,
    names.is_named_by_gerund,
    shape.is_too_long,
    shape.lacks_module_docstring,
    shape.has_to_do_comment,
    shape.has_bare_type_ignore,
    shape.swallows_errors,
    shape.prints_outside_cli,
    shape.sleeps_in_test,
)
REPOSITORY_RULES: tuple[RepositoryRule, ...] = (names.duplicates_test_file_name, places.is_missing_in_handler_table)
TEXT_RULES: tuple[TextRule, ...] = (places.names_package_registry,)


@cache
def sources() -> tuple[Source, ...]:
    return tuple(repository())


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Yield path and text of every text file that is tracked, or would be."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for path in sorted(filter(None, listing.stdout.split("\0"))):
        try:
            yield path, (ROOT / path).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # a binary file, or one being replaced
