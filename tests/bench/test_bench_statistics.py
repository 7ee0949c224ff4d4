"""Statistics of measurements."""

import pytest

from moldau.cli.bench.rounds import Round, interleave
from moldau.cli.bench.statistics import Spread, latencies, quantile, ratios, spread


def test_spread_has_median_minimum_and_maximum() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


def test_no_measurement_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)


def test_ratios_are_taken_by_round() -> None:
    assert ratios([10.0, 1.0, 8.0], [20.0, 2.0, 10.0]) == Spread(0.5, 0.5, 0.8)


def test_ratios_need_both_sides_of_every_round() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)])
def test_quantile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert quantile([float(each) for each in range(1, 101)], share) == expected


def test_latencies_need_no_order() -> None:
    found = latencies([float(each) for each in range(1000, 0, -1)])
    assert (found.count, found.p50_ms, found.p99_ms, found.p999_ms, found.max_ms) == (1000, 500.0, 990.0, 999.0, 1000.0)


def test_one_sample_is_every_quantile() -> None:
    found = latencies([7.0])
    assert (found.p50_ms, found.p99_ms, found.p999_ms, found.max_ms) == (7.0, 7.0, 7.0, 7.0)


def test_round_reports_rates_and_cost() -> None:
    measured = Round(requests=100, elapsed_s=2.0, bytes=1000, records=500, server_cpu_s=0.001)
    assert measured.requests_per_s == 50
    assert measured.bytes_per_s == 500
    assert measured.records_per_s == 250
    assert measured.cpu_us == pytest.approx(10.0)


def test_subjects_alternate_after_warm_up() -> None:
    calls: list[str] = []

    def subject(name: str) -> Round:
        calls.append(name)
        return Round(len(calls), 1.0)

    reported: list[str] = []
    found = interleave({"a": lambda: subject("a"), "b": lambda: subject("b")}, 2, reported.append)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert [each.requests for each in found["a"]] == [3, 5]
    assert reported[0] == "a: warming up"
    assert reported[-1] == "b: round 2 of 2"
