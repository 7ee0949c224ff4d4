"""Every kind of measurement once, very small, against a real broker."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.cli.bench import cases, end_to_end, fetch_load, latency
from moldau.cli.bench.bench import Bench, Load
from moldau.cli.bench.cluster import any_cluster, own_broker
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.latency import LatencyCase
from moldau.cli.bench.produce_load import ProduceCase, run_produce
from moldau.cli.bench.reports import report
from moldau.cli.bench.requests import Shape
from moldau.cli.bench.session import Plan, stall_p99_ms
from moldau.model.units import MiB
from moldau_dev.bench import footprint, groups, replication_load, transactions
from moldau_dev.bench.footprint import measure_footprint
from moldau_dev.bench.growth import suite as growth
from moldau_dev.bench.targets import footprint_verdicts, group_verdicts, replicated_verdicts, transaction_verdicts

BRIEF = Load(in_flight=3, bytes_max=2 * MiB, seconds_max=0.3)
PACED = LatencyCase(Shape(10, 100), bytes_per_s=1e6, seconds=0.2)
SMALL = transactions.Size(transactions=20, seconds=60.0, producers=10, filled_bytes=200_000)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    with own_broker(folder) as cluster, Generator() as generator:
        yield Bench(cluster, generator, folder, connections=2, rounds=1, tell=lambda _: None)


@pytest.mark.proves("A4", part="bench")
def test_produce_is_compared_with_the_reference_loop(bench: Bench) -> None:
    case = ProduceCase("small", Shape(10, 100), BRIEF)
    measured = run_produce(bench, [case])
    assert measured.keys() == {case.name, case.plain_name}
    (found,) = measured[case.name]
    assert found.records == found.requests * 10
    assert 1 < found.cpu_us < 100_000
    assert json.loads(json.dumps(report(measured, [])))


def test_round_deletes_its_data(bench: Bench) -> None:
    run_produce(bench, [ProduceCase("small", Shape(10, 100), BRIEF)], with_baselines=False)
    (folder,) = bench.cluster.data
    assert not list(folder.glob("moldau-bench-*"))


def test_fetch_is_compared_with_sendfile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_load, "FILLING", Load(in_flight=3, bytes_max=4 * MiB, seconds_max=5.0))
    measured = fetch_load.run_fetch(bench, BRIEF, fetch_bytes=256 * 1024)
    (ours,), (plain,) = measured[fetch_load.NAME], measured[fetch_load.PLAIN_NAME]
    assert ours.bytes // ours.requests == plain.bytes // plain.requests
    assert 200_000 < ours.bytes // ours.requests <= 256 * 1024


def test_latency_is_compared_with_an_echo_server(bench: Bench) -> None:
    measured = latency.run_latency(bench, PACED)
    (ours,), (echo,) = measured[latency.NAME], measured[latency.ECHO_NAME]
    assert len(ours.samples_ms) > 100
    assert len(echo.samples_ms) > 100


def test_end_to_end_latency_is_measured(bench: Bench) -> None:
    (found,) = end_to_end.run_end_to_end(bench, PACED)[end_to_end.NAME]
    assert len(found.samples_ms) > 100
    assert min(found.samples_ms) > 0


def test_stalls_of_the_broker_are_read(bench: Bench) -> None:
    assert stall_p99_ms(bench, {}) is not None


def test_foreign_cluster_is_measured_without_cpu(bench: Bench) -> None:
    with any_cluster(bench.cluster.bootstrap_servers) as cluster:
        elsewhere = Bench(cluster, bench.generator, bench.folder, connections=1, rounds=1, tell=lambda _: None)
        measured = run_produce(elsewhere, [ProduceCase("small", Shape(10, 100), BRIEF)])
    assert measured.keys() == {"small"}
    assert measured["small"][0].server_cpu_s is None


def test_footprint_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "SETTLE_S", 0.05)
    found = measure_footprint(tmp_path, lambda _: None, connections=20, partitions=10)
    assert found.idle_bytes > 10_000_000
    assert found.partitions_start_s > 0
    assert len(footprint_verdicts(found)) == 4


def test_three_replicas_are_compared_with_a_reference_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replication_load, "THREE", replace(replication_load.THREE, load=BRIEF))
    monkeypatch.setattr(replication_load, "ONE", replace(replication_load.ONE, load=BRIEF))
    monkeypatch.setattr(cases, "ACKNOWLEDGE_20_MB", PACED)
    plan = Plan(None, tmp_path, rounds=1, connections=2)
    measured = replication_load.measure_replicated(plan, lambda _: None)
    verdicts = replicated_verdicts(measured)
    assert [each.unit for each in verdicts] == ["x", "x", "x"]
    assert all(each.reached.median > 0 for each in verdicts)


def test_transactions_are_measured_open_and_read(bench: Bench) -> None:
    found = transactions.run_transactions(bench, SMALL)
    rounds = found.rounds
    for name in transactions.VERSIONS.values():
        assert rounds[name][0].requests >= SMALL.transactions
        assert 1 < rounds[name][0].cpu_us < 100_000
    assert rounds[transactions.COMMIT_NAME.format(SMALL.producers)][0].requests == SMALL.producers
    assert rounds[transactions.COMMITTED_NAME][0].bytes > SMALL.filled_bytes // 2
    assert [each.unit for each in transaction_verdicts(found)] == ["us", "us", "x", "MB"]


def test_groups_are_compared_with_an_echo_server(tmp_path: Path) -> None:
    size = groups.Size(beats_per_s=200, beat_seconds=0.2, connections=3, members=4, groups=7, partitions=3, commits=500)
    found = groups.measure_groups(Plan(None, tmp_path, 1, 1), lambda _: None, size)
    assert len(found.rounds[groups.ECHO_NAME][0].samples_ms) == 40
    assert all(0 < each < 60 for each in found.settled_s.values())
    (reloaded,) = found.reloads
    assert reloaded.seconds > 0
    assert reloaded.quiet_ms
    assert len(group_verdicts(found)) == 6


def test_growth_measures_each_cost_beside_topics(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "CHANGES_MAX", 2)
    monkeypatch.setattr(growth, "SCRAPES", 1)
    costs = growth.measure_with_topics(bench.cluster, 3)
    assert costs.keys() == {"empty", "one", "config", "create", "scrape", "stall"}
    assert all(cost > 0 for cost in costs.values())
