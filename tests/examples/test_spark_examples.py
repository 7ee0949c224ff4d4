"""The Spark examples: the same code for both formats, and every example is listed on the page."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def code_of(name: str) -> list[list[str]]:
    """Return the words of each line after the docstring."""
    _, _, code = (EXAMPLES / "spark" / name).read_text().split('"""', 2)
    return [line.split() for line in code.splitlines()]


@pytest.mark.proves("D1")
def test_one_word_differs_between_the_two_formats() -> None:
    ours, theirs = code_of("purchases_moldau.py"), code_of("purchases_kafka.py")
    assert len(ours) == len(theirs)
    pairs = [pair for one, other in zip(ours, theirs, strict=True) for pair in zip(one, other, strict=True)]
    assert [pair for pair in pairs if pair[0] != pair[1]] == [('"moldau"', '"kafka"')]


def test_every_example_is_on_the_page_of_examples() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    programs = [each.relative_to(ROOT).as_posix() for each in EXAMPLES.rglob("*.py")]
    assert programs
    assert not [each for each in programs if f"`{each}`" not in page]
