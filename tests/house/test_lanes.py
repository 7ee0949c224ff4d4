"""`make test` runs each test once: the paths of lanes exist, the last lane runs the rest, failures are recapped."""

from pathlib import Path

import lanes
import pytest


def runs() -> list[list[str]]:
    return [[*arguments] for step in lanes.steps() for lane in step.values() for arguments in lane]


def test_paths_of_lanes_exist() -> None:
    named = [argument for run in runs() for argument in run if not argument.startswith("-")]
    assert [each for each in (*named, *lanes.HOUSE) if not (lanes.ROOT / each).exists()] == []


def test_every_ignored_path_runs_in_another_lane_or_in_the_checks() -> None:
    arguments = [argument for run in runs() for argument in run]
    ignored = {argument.removeprefix("--ignore=") for argument in arguments if argument.startswith("--ignore=")}
    run_paths = [argument for argument in arguments if not argument.startswith("-")]
    assert ignored == {*run_paths, *lanes.HOUSE} - {"tests"}
    assert len(run_paths) == len(set(run_paths))


@pytest.mark.parametrize(("passing", "passes"), [(2, True), (1, False)])
def test_step_passes_only_if_every_lane_passes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, passing: int, passes: bool
) -> None:
    step = {}
    for number, name in enumerate(("one", "other")):
        file = tmp_path / f"test_{name}.py"
        file.write_text(f"def test_it() -> None:\n    assert {number} < {passing}\n")
        step[name] = [[str(file)]]
    done = lanes.run_step(step)
    assert all(run.code == 0 for run in done) is passes
    printed = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in printed} == {"one", "other"}
    recaps = {run.lane: "".join(run.recap()) for run in done}
    assert recaps["one"] == ""
    assert ("test_other.py::test_it" in recaps["other"].rpartition("\nFAILED ")[2]) is not passes


def test_run_that_never_started_is_a_failure() -> None:
    assert lanes.Run("one").recap()[0] == "a run exited with None; its last lines and its failures:\n"
