"""The pages lead where they say: links resolve, and the make targets they name exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from house.source import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if "://" not in target and not (page.parent / target).exists():
            yield target


def named_targets(page: Path) -> set[str]:
    """The targets after `make` in code: spans, and lines of blocks."""
    code = "\n".join(CODE.findall(page.read_text()))
    return set(re.findall(r"^[`$ ]*make ([a-z][a-z-]*)", code, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_resolves(page: Path) -> None:
    assert not list(broken_links(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_documented_make_target_exists(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    assert named_targets(page) <= targets


def test_every_make_target_has_a_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    helped = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert set(phony) == helped
    assert len(phony) == len(helped)


def test_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[there](page.md) [gone](other.md#part) `[code](no.md)` [far](https://example.org)")
    assert list(broken_links(page)) == ["other.md"]


def test_make_targets_are_read_from_spans_and_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Run `make test`, make haste.\n```\nmake run   # now\n$ make soak-kill\n```\n")
    assert named_targets(page) == {"test", "run", "soak-kill"}
