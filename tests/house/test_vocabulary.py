"""Names and prose avoid the words of the list."""

import pytest
from house import rules, vocabulary

PATH = "src/moldau/broker/thing.py"


def test_repository_avoids_the_words() -> None:
    findings = [finding for path, text in rules.tracked_texts() for finding in vocabulary.uses_dialect(path, text)]
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize(
    "text",
    [
        "# Nobody waits.",
        '"""Clients are told."""',
        "def _nobody_hears(): ...",
        "class WhoeverLeads: ...",
        "class LeadsAnew: ...",
        "told = []",
        "self.untold_bytes = 0",
    ],
)
def test_word_is_found_in_prose_and_in_names(text: str) -> None:
    assert list(vocabulary.uses_dialect(PATH, text))


@pytest.mark.parametrize("text", ["retold", "newcomer", "a hushed voice", "renewal", "toldo = 1"])
def test_part_of_another_word_is_accepted(text: str) -> None:
    assert not list(vocabulary.uses_dialect(PATH, text))


@pytest.mark.parametrize("path", ["CHANGELOG.md", "docs/figures.json", "tools/house/vocabulary.py"])
def test_paths_outside_the_rule_are_skipped(path: str) -> None:
    assert not list(vocabulary.uses_dialect(path, "nobody"))
