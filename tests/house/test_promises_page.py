"""The promises page tells the truth: it is fresh, its mutants apply, and only a caught bug makes a promise proven."""

from dataclasses import replace

import bugs
import mutants
import promises
import pytest
from mutants import Mutant
from promises import Evidence, MarkedTest, Promise

TEST_ID = "tests/storage/test_log.py::test_offsets_count_up"
S1 = Promise("S1", "A log.", ("counts", "keeps"))
GROUPS = {"Storage": [S1]}
MUTANT = Mutant(
    name="offsets stand still",
    code="S1",
    part="counts",
    file="src/moldau/storage/log.py",
    search="offset += 1",
    replace="offset += 0",
    test=TEST_ID,
)
MARKED = MarkedTest(TEST_ID, frozenset({"S1"}))


def test_the_page_is_fresh() -> None:
    assert promises.PAGE.read_text() == promises.page(), "docs/promises.md is stale: run `make docs`"


def test_every_mutant_still_applies() -> None:
    wrong = bugs.complaints(mutants.load(mutants.LIST.read_text()))
    assert not wrong, "\n".join(wrong)


def test_every_mutant_was_caught() -> None:
    known = mutants.recorded()
    unknown = [mutant.name for mutant in mutants.load(mutants.LIST.read_text()) if mutant.digest not in known]
    assert not unknown, f"run `make mutants`: {unknown}"


def test_markers_and_mutants_agree_with_the_promises() -> None:
    groups = promises.load_groups(promises.TABLE.read_text())
    wrong = promises.contradictions(groups, promises.gather(), mutants.load(mutants.LIST.read_text()))
    assert not wrong, "\n".join(wrong)


def test_a_promise_is_proven_only_when_every_part_has_a_caught_mutant() -> None:
    other = replace(MUTANT, part="keeps")
    assert Evidence((), ()).state(S1) == "missing"
    assert Evidence((MARKED,), ()).state(S1) == "partial"
    assert Evidence((MARKED,), (MUTANT,)).state(S1) == "partial"
    assert Evidence((MARKED,), (MUTANT, other)).state(S1) == "proven"


@pytest.mark.parametrize(
    "text",
    [
        "import pytest\n@pytest.mark.proves('S1', 'S2')\ndef test_a(): ...",
        "import pytest\npytestmark = [pytest.mark.proves('S1'), pytest.mark.proves('S2')]\nasync def test_a(): ...",
        "import pytest\n@pytest.mark.proves('S1', part='x')\n@pytest.mark.proves('S2')\ndef test_a(): ...",
    ],
)
def test_markers_are_read_from_functions_and_modules(text: str) -> None:
    assert list(promises.marked_tests("test_x.py", text)) == [MarkedTest("test_x.py::test_a", frozenset({"S1", "S2"}))]


def test_markers_are_read_from_classes() -> None:
    text = (
        "import pytest\n@pytest.mark.proves('S1')\nclass TestIt:\n    def test_a(self): ...\n    def other(self): ..."
    )
    assert list(promises.marked_tests("t.py", text)) == [MarkedTest("t.py::TestIt::test_a", frozenset({"S1"}))]


def test_a_code_that_nobody_promised_is_found() -> None:
    stray = MarkedTest(TEST_ID, frozenset({"S1", "Z9"}))
    assert promises.contradictions(GROUPS, Evidence((stray,), ()), []) == [f"{TEST_ID} proves Z9, which is no promise"]


def test_a_mutant_whose_test_proves_something_else_is_found() -> None:
    assert len(promises.contradictions(GROUPS, Evidence((), ()), [MUTANT])) == 1
    assert len(promises.contradictions(GROUPS, Evidence((MARKED,), ()), [replace(MUTANT, part="sings")])) == 1
    assert not promises.contradictions(GROUPS, Evidence((MARKED,), ()), [MUTANT])


def test_a_mutant_applies_only_to_a_text_that_occurs_once() -> None:
    assert bugs.apply(MUTANT, "offset += 1\n") == "offset += 0\n"
    with pytest.raises(ValueError, match="2 times"):
        bugs.apply(MUTANT, "offset += 1\noffset += 1\n")
    with pytest.raises(SyntaxError):
        bugs.apply(replace(MUTANT, replace="offset +="), "offset += 1\n")


def test_a_changed_mutant_is_no_longer_the_one_that_was_caught() -> None:
    assert replace(MUTANT, replace="pass").digest != MUTANT.digest
