"""The promises page tells the truth: it is fresh, its mutants apply, and only a caught bug makes a promise proven."""

from dataclasses import replace

import mutants
import mutation
import promises
import pytest
import simulated_mutants
from mutants import Mutant
from promises import Evidence, MarkedTest, Promise

TEST_ID = "tests/storage/test_log.py::test_offsets_count_up"
S1 = Promise("S1", "A log.", ("counts", "keeps"))
GROUPS = {"Storage": [S1]}
MUTANT = Mutant(
    id="S1-1",
    name="offsets stand still",
    code="S1",
    part="counts",
    file="src/moldau/storage/log.py",
    search="offset += 1",
    replace="offset += 0",
    test=TEST_ID,
)
MARKED = MarkedTest(TEST_ID, frozenset({"S1"}))


def test_pages_are_up_to_date() -> None:
    for path, text in promises.pages().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"


def test_every_mutant_still_applies() -> None:
    wrong = mutation.problems(mutants.load(mutants.LIST.read_text()))
    assert not wrong, "\n".join(wrong)


def test_every_mutant_was_caught() -> None:
    known = mutants.recorded()
    unknown = [mutant.id for mutant in mutants.load(mutants.LIST.read_text()) if mutant.verdict_row not in known]
    assert not unknown, f"run `python tools/mutants.py --new`: {unknown}"


def test_mutant_ids_are_unique() -> None:
    for listed in (mutants.load(mutants.LIST.read_text()), simulated_mutants.load(simulated_mutants.LIST.read_text())):
        ids = [mutant.id for mutant in listed]
        assert len(ids) == len(set(ids))


def test_every_simulated_mutant_applies_and_was_caught() -> None:
    listed = simulated_mutants.load(simulated_mutants.LIST.read_text())
    wrong = mutation.problems(listed)
    assert not wrong, "\n".join(wrong)
    known = simulated_mutants.recorded()
    unknown = [mutant.id for mutant in listed if not simulated_mutants.is_caught(mutant, known)]
    assert not unknown, f"run `python tools/simulated_mutants.py --new`: {unknown}"


def test_markers_and_mutants_agree_with_the_promises() -> None:
    groups = promises.load_groups(promises.TABLE.read_text())
    wrong = promises.contradictions(groups, promises.gather(), mutants.load(mutants.LIST.read_text()))
    assert not wrong, "\n".join(wrong)


def test_promise_is_proven_when_every_part_has_a_caught_mutant() -> None:
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


def test_unknown_promise_code_is_found() -> None:
    stray = MarkedTest(TEST_ID, frozenset({"S1", "Z9"}))
    assert promises.contradictions(GROUPS, Evidence((stray,), ()), []) == [f"{TEST_ID} proves Z9, which is no promise"]


def test_mutant_of_an_unrelated_test_is_found() -> None:
    assert len(promises.contradictions(GROUPS, Evidence((), ()), [MUTANT])) == 1
    assert len(promises.contradictions(GROUPS, Evidence((MARKED,), ()), [replace(MUTANT, part="sings")])) == 1
    assert not promises.contradictions(GROUPS, Evidence((MARKED,), ()), [MUTANT])


def test_mutation_applies_only_where_its_pattern_matches_once() -> None:
    assert mutation.apply(MUTANT, "offset += 1\n") == "offset += 0\n"
    with pytest.raises(ValueError, match="2 times"):
        mutation.apply(MUTANT, "offset += 1\noffset += 1\n")
    with pytest.raises(SyntaxError):
        mutation.apply(replace(MUTANT, replace="offset +="), "offset += 1\n")


def test_mutation_is_confined_to_its_function() -> None:
    source = "class A:\n    def f(self):\n        offset += 1\n    def g(self):\n        offset += 1\n"
    mutated = mutation.apply(replace(MUTANT, function="A.g"), source)
    assert mutated == source[: source.rindex("1")] + "0\n"
    with pytest.raises(ValueError, match=r"0 definitions are named A\.h"):
        mutation.apply(replace(MUTANT, function="A.h"), source)


def test_mutation_pattern_ignores_layout() -> None:
    wrapped = replace(MUTANT, search="call(one, two)", replace="call(two)")
    assert mutation.apply(wrapped, "call(\n    one,\n    two,\n)\n") == "call(two)\n"
    moved = replace(MUTANT, search="    a()\n    b()\n", replace="    b()\n    a()\n")
    assert mutation.apply(moved, "if x:\n    if y:\n        a()\n        b()\n").endswith("b()\n        a()\n")


def test_mutation_shape_survives_renames_but_not_changes() -> None:
    renamed = replace(MUTANT, search="end += 1", replace="end += 0")
    assert renamed.verdict_row == MUTANT.verdict_row
    assert replace(MUTANT, replace="pass").verdict_row != MUTANT.verdict_row
    assert replace(MUTANT, replace="offset += 2").verdict_row != MUTANT.verdict_row
    assert replace(MUTANT, test="tests/other.py::test_it").verdict_row != MUTANT.verdict_row
