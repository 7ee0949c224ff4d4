"""`make test` runs each test once: what a lane names is there, the rest is with the others, and failures are told."""

from pathlib import Path

import lanes
import pytest


def runs() -> list[list[str]]:
    return [[*words] for step in lanes.steps() for lane in step.values() for words in lane]


def test_what_is_named_is_there() -> None:
    named = [*lanes.MEASURING, *lanes.CLIENTS, *lanes.SPARK, *lanes.SEEDS, *lanes.CHECKED]
    assert [each for each in named if not (lanes.ROOT / each).exists()] == []


def test_what_one_run_leaves_out_another_takes_or_the_checks_do() -> None:
    words = [word for run in runs() for word in run]
    left_out = {word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")}
    taken = [word for word in words if not word.startswith("-")]
    assert left_out == {*taken, *lanes.CHECKED} - {"tests"}
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize(("passing", "is_well"), [(2, True), (1, False)])
def test_all_is_well_if_every_lane_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, passing: int, is_well: bool
) -> None:
    step = {}
    for number, name in enumerate(("one", "other")):
        file = tmp_path / f"test_{name}.py"
        file.write_text(f"def test_it() -> None:\n    assert {number} < {passing}\n")
        step[name] = [[str(file)]]
    done = lanes.run_step(step)
    assert all(run.code == 0 for run in done) is is_well
    told = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in told} == {"one", "other"}
    recaps = {run.lane: "".join(run.recap()) for run in done}
    assert recaps["one"] == ""
    assert ("test_other.py::test_it" in recaps["other"].rpartition("\nFAILED ")[2]) is not is_well


def test_a_run_that_never_began_is_not_well() -> None:
    assert lanes.Run("one").recap()[0] == "a run ended with None; its last lines, and what failed:\n"
