"""A bug put in on purpose: a text of a source file that becomes another one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[1]


class Bug(Protocol):
    """In `file`, `search` becomes `replace`."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> str: ...

    @property
    def search(self) -> str: ...

    @property
    def replace(self) -> str: ...


def apply(bug: Bug, text: str) -> str:
    """The file with the bug in it; ValueError if the list is out of date."""
    found = text.count(bug.search)
    if found != 1:
        raise ValueError(f"'{bug.name}': its text occurs {found} times in {bug.file}, not once")
    broken = text.replace(bug.search, bug.replace)
    compile(broken, bug.file, "exec")
    return broken


def complaints(bugs: Iterable[Bug]) -> list[str]:
    """What is wrong with a list as it stands beside the source."""
    wrong = []
    for bug in bugs:
        try:
            apply(bug, (ROOT / bug.file).read_text())
        except (ValueError, SyntaxError, FileNotFoundError) as problem:
            wrong.append(str(problem))
    return wrong
