"""Committed figures and targets: storage, comparison and verdicts."""

from pathlib import Path

import pytest

from moldau.cli.bench import cases, fetch_load, latency, targets
from moldau.cli.bench.reports import number, report
from moldau.cli.bench.rounds import Round
from moldau.cli.errors import CommandError
from moldau_dev.bench import figures
from moldau_dev.bench.figures import Figure, Figures
from moldau_dev.bench.footprint import Footprint
from moldau_dev.bench.targets import footprint_verdicts

KEPT = Figures({"produce one record": Figure(20.0, 2.0)}, 4.0)


def rounds(*cpu_us: float, bytes_per_s: float = 1e9, records: int = 0) -> list[Round]:
    return [Round(1000, 1.0, int(bytes_per_s), records, server_cpu_s=each / 1000) for each in cpu_us]


def test_saved_figures_are_read_back(tmp_path: Path) -> None:
    figures.save(KEPT, tmp_path)
    assert figures.load(tmp_path) == KEPT


def test_missing_figures_are_accepted(tmp_path: Path) -> None:
    assert figures.load(tmp_path) is None
    (row, stall) = figures.compare(KEPT, None)
    assert (row.now, row.then, row.change) == (20.0, None, None)
    assert stall.now == 4.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cpu_per_request": {"x": {"cpu": 1}}, "loop_stall_p99_ms": 1}'])
def test_invalid_figures_are_reported_with_a_hint(tmp_path: Path, text: str) -> None:
    (tmp_path / figures.FILE_NAME).write_text(text)
    with pytest.raises(CommandError, match="--save"):
        figures.load(tmp_path)


def test_machine_speed_cancels_out_of_the_comparison() -> None:
    now = Figures({"produce one record": Figure(30.0, 3.0)}, 8.0)
    row, stall = figures.compare(now, KEPT)
    assert row.change == pytest.approx(1.5)
    assert row.change_of_plain == pytest.approx(1.0)
    assert stall.change == pytest.approx(2.0)


def test_least_cpu_of_the_rounds_is_the_figure() -> None:
    measured = {name: rounds(30.0, 20.0, 25.0) for pair in figures.PAIRS.values() for name in pair}
    found = figures.figures(measured, None)
    assert found.requests["fetch 1 MiB"].cpu_us == pytest.approx(20.0)
    assert found.requests["fetch 1 MiB"].of_plain == pytest.approx(1.0)


def test_committed_figures_can_be_read() -> None:
    found = figures.load(Path(__file__).parents[2] / "bench")
    assert found is not None
    assert set(found.requests) == set(figures.PAIRS)


def test_target_is_judged_by_its_median() -> None:
    measured = {
        cases.PRODUCE_64K.name: rounds(60, 60, 60, bytes_per_s=0.8e9),
        cases.PRODUCE_64K.plain_name: rounds(30, 30, 30, bytes_per_s=1e9),
    }
    found = {each.text: each for each in targets.verdicts(measured)}
    ratio = found["produce of 64 KiB batches, of a plain receive-and-write loop"]
    assert ratio.is_met
    assert ratio.reached.median == pytest.approx(0.8)
    assert not found["records of 100 B produced a second, in raw batches"].is_met


def test_only_measured_targets_are_judged() -> None:
    assert targets.verdicts({}) == []
    assert [each.text for each in targets.verdicts({cases.PRODUCE_ONE.name: rounds(20.0)})] == [
        "CPU of a one-record produce request"
    ]


def test_foreign_cluster_is_not_judged_by_its_cpu() -> None:
    assert targets.verdicts({cases.PRODUCE_ONE.name: [Round(10, 1.0, 10, 10)]}) == []


def test_latency_is_compared_by_p99_of_each_round() -> None:
    def paced(p99_ms: float) -> Round:
        return Round(100, 1.0, samples_ms=[1.0] * 98 + [p99_ms] * 2)

    (verdict,) = targets.verdicts({latency.NAME: [paced(4.0), paced(9.0)], latency.ECHO_NAME: [paced(2.0), paced(3.0)]})
    assert verdict.reached.median == pytest.approx(2.5)
    assert verdict.is_met


def test_footprint_has_a_verdict_for_each_part() -> None:
    found = footprint_verdicts(Footprint(81_000_000, 0.5, 2000, 59_000_000, 1000, 2.9, 150_000_000))
    assert [each.is_met for each in found] == [False, True, True, True]


def test_report_is_plain_json() -> None:
    import json

    reported = report({fetch_load.NAME: rounds(300.0), "empty": []}, [])
    assert json.loads(json.dumps(reported))["measurements"].keys() == {fetch_load.NAME}


@pytest.mark.parametrize(
    ("value", "shown"), [(0.1234, "0.123"), (1.2345, "1.23"), (23.456, "23.5"), (1234.5, "1,234"), (0.0, "0.000")]
)
def test_numbers_have_three_significant_digits(value: float, shown: str) -> None:
    assert number(value) == shown
