"""Names and prose avoid the words of the list; paths that are not clean yet stay within their budgets."""

import pytest
from house import rules, vocabulary
from house.source import Finding

PATH = "src/moldau/broker/thing.py"


def test_repository_avoids_the_words() -> None:
    findings = [finding for path, text in rules.tracked_texts() for finding in vocabulary.uses_dialect(path, text)]
    problems = vocabulary.over_budget(findings, vocabulary.budgets())
    assert not problems, "\n".join(problems)


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


def test_budget_covers_its_path_only_up_to_its_count() -> None:
    findings = [Finding("src/a/x.py", 1, "m"), Finding("src/a/y.py", 2, "m"), Finding("src/b/z.py", 3, "m")]
    assert vocabulary.over_budget(findings, {"src/a/": 2}) == ["src/b/z.py:3: m"]
    (exceeded,) = vocabulary.over_budget(findings[:2], {"src/a/": 1})
    assert exceeded.startswith("src/a/: 2 lines")


def test_longest_prefix_decides_the_budget() -> None:
    finding = Finding("src/a/clean/x.py", 1, "m")
    assert vocabulary.over_budget([finding], {"src/a/": 5, "src/a/clean/": 0})
