"""The pages lead where they say: links resolve, and the make targets they name exist."""

import re
import tomllib
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


def navigated(entry: object) -> Iterator[str]:
    """The pages below an entry of the navigation, which is a page, a list, or a title with either."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        yield from (page for each in entry for page in navigated(each))
    elif isinstance(entry, dict):
        yield from navigated(list(entry.values()))


def test_navigation_of_the_site_has_every_page_once() -> None:
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    decisions = {page for page in pages if re.match(r"decisions/\d", page)}  # their generated index lists them
    named = list(navigated(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert sorted(named) == sorted(pages - decisions)


def test_each_decision_has_its_own_number_in_name_and_title() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len(set(numbers)) == len(pages)
    assert [page.read_text().partition(".")[0] for page in pages] == [f"# {number}" for number in numbers]


def test_pages_are_read_from_nested_navigation() -> None:
    assert list(navigated([{"Home": "index.md"}, {"Guides": [{"A": "a.md"}, "b.md"]}])) == ["index.md", "a.md", "b.md"]


def test_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[there](page.md) [gone](other.md#part) `[code](no.md)` [far](https://example.org)")
    assert list(broken_links(page)) == ["other.md"]


def test_make_targets_are_read_from_spans_and_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Run `make test`, make haste.\n```\nmake run   # now\n$ make soak-kill\n```\n")
    assert named_targets(page) == {"test", "run", "soak-kill"}
