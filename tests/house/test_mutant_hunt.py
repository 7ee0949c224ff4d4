"""The mutant hunt tells a caught bug from one that slipped through, on a small project of its own."""

from pathlib import Path

import mutants
import pytest
from mutants import Mutant

CODE = "def double(x):\n    return x * 2\n"
TESTS = """\
import sys
from pathlib import Path

def test_it_doubles():
    from counting import double
    assert double(3) == 6

def test_it_is_there():
    import counting

def test_it_never_passes():
    raise AssertionError

def test_it_needs_a_machine_that_is_not_here():
    import pytest
    pytest.skip("not here")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/counting.py").write_text(CODE)
    (tmp_path / "test_counting.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return tmp_path


def mutant(test: str, replace: str = "x * 3") -> Mutant:
    return Mutant(
        id=test,
        name=test,
        code="S1",
        file="src/counting.py",
        search="x * 2",
        replace=replace,
        test=f"test_counting.py::{test}",
    )


def test_only_a_test_that_passes_clean_and_fails_broken_catches(project: Path) -> None:
    verdicts = mutants.hunt(
        [
            mutant("test_it_doubles"),
            mutant("test_it_is_there"),
            mutant("test_it_never_passes"),
            mutant("test_it_needs_a_machine_that_is_not_here"),
            mutant("test_that_is_not_there"),
        ]
    )
    assert list(verdicts.values()) == [
        mutants.CAUGHT,
        "NOT caught: the test still passes",
        "the test fails on the clean source too",
        mutants.LEFT_OUT,
        "the test fails on the clean source too",
    ]
    assert (project / "src/counting.py").read_text() == CODE
