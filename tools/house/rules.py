"""The table of house rules."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from house import names, places, shape, world
from house.source import ROOT, Finding, Source, repository

FileRule = Callable[[Source], Iterator[Finding]]
RepositoryRule = Callable[[Sequence[Source]], Iterator[Finding]]
TextRule = Callable[[str, str], Iterator[Finding]]

FILE_RULES: tuple[FileRule, ...] = (
    world.touches_the_world,
    names.says_nothing,
    shape.is_too_long,
    shape.does_not_introduce_itself,
    shape.leaves_work_behind,
    shape.ignores_types_at_large,
    shape.swallows_errors,
    shape.prints,
    shape.sleeps_in_a_test,
)
REPOSITORY_RULES: tuple[RepositoryRule, ...] = (names.hides_another_test, places.is_not_in_the_table)
TEXT_RULES: tuple[TextRule, ...] = (places.names_a_registry,)


@cache
def sources() -> tuple[Source, ...]:
    return tuple(repository())


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Path and text of every text file that git keeps, or would."""
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
            continue  # a binary file, or one that is being replaced
