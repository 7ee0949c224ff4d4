"""The comparison with Apache Kafka: rows, ratios, and stopping one of the two."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import own_broker
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.requests import Shape
from moldau.cli.errors import CommandError
from moldau_dev.bench.kafka import c_client
from moldau_dev.bench.kafka.apache import JVM_FLAGS, ApacheNode
from moldau_dev.bench.kafka.fan_out import fan_out
from moldau_dev.bench.kafka.promised import cores, is_met
from moldau_dev.bench.kafka.report import as_json, lines
from moldau_dev.bench.kafka.rows import ROWS, Figures, chosen
from moldau_dev.bench.kafka.runner import KAFKA, MOLDAU, Compared, Effort, subject_of
from moldau_dev.bench.kafka.subject import Subject


def compared(ours: list[Figures], theirs: list[Figures]) -> Compared:
    return Compared("a row", "request", {MOLDAU: ours, KAFKA: theirs})


def test_ratio_is_computed_within_a_round() -> None:
    row = compared([Figures(per_s=10), Figures(per_s=40)], [Figures(per_s=5), Figures(per_s=80)])
    (line,) = lines([row])
    assert line.ratio is not None
    assert (line.ratio.low, line.ratio.median, line.ratio.high) == (0.5, 1.25, 2)
    assert line.measure == "requests per second"


@pytest.mark.parametrize(
    ("ours", "theirs", "is_ahead"),
    [
        (Figures(per_s=2), Figures(per_s=1), True),
        (Figures(per_s=1), Figures(per_s=2), False),
        (Figures(cpu_us=1), Figures(cpu_us=2), True),
        (Figures(p99_ms=2), Figures(p99_ms=1), False),
        (Figures(value=2), Figures(value=1), False),
    ],
)
def test_more_per_second_and_less_of_all_else_is_ahead(ours: Figures, theirs: Figures, is_ahead: bool) -> None:
    (line,) = lines([compared([ours], [theirs])])
    assert line.is_ahead is is_ahead


def test_figures_of_a_row_are_written_as_json() -> None:
    found = json.loads(json.dumps(as_json([compared([Figures(1, 2.0)], [Figures(2, 1.0)])], Effort(1.0, 1))))
    assert [(each["row"], each["ratio"]["median"]) for each in found["rows"]] == [("a row", 0.5), ("a row", 2.0)]
    assert found["machine"]["processors"] == os.cpu_count()


def test_rows_are_chosen_by_words() -> None:
    assert {row.name for row in chosen("transactions, 200 CONN")} == {
        "transactions of 100 records",
        "200 connections, one small request each",
    }
    assert chosen("") == list(ROWS)
    with pytest.raises(CommandError, match="no row is named 'nothing'"):
        chosen("nothing")


def test_kafka_runs_with_the_flags_of_its_own_script(tmp_path: Path) -> None:
    assert {"-Xmx1G", "-Xms1G", "-XX:+UseG1GC"} < set(JVM_FLAGS)
    settings = dict(line.split("=", 1) for line in ApacheNode(tmp_path, 2, [1, 2, 3], 3)._settings().splitlines())
    assert settings["process.roles"] == "broker"
    assert settings["socket.send.buffer.bytes"] == "102400"
    assert settings["controller.quorum.bootstrap.servers"] == "127.0.0.1:1"


def state_of(process: "subprocess.Popen[bytes]") -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(process: "subprocess.Popen[bytes]", *states: str) -> None:
    deadline_s = time.monotonic() + 10
    while state_of(process) not in states:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)  # between two looks at the process, until the deadline


@pytest.mark.proves("F4")
def test_the_other_subject_is_stopped_while_one_runs(tmp_path: Path) -> None:
    with own_broker(tmp_path) as cluster, Generator() as generator:
        bench = Bench(cluster, generator, tmp_path, 1, 1, lambda _: None)
        running = subject_of(MOLDAU, bench)
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            with running.running_alone([Subject(KAFKA, bench, [other.pid], 0.0)]):
                until(other, "T")
            until(other, "S", "R")
        finally:
            other.send_signal(signal.SIGKILL)
            other.wait()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_client_on_librdkafka_measures_a_broker(tmp_path: Path) -> None:
    program = c_client.build(tmp_path)
    with own_broker(tmp_path) as cluster, cluster.topic(1) as topic:
        produced = c_client.run(program, "produce", cluster.bootstrap_servers, topic.name, 1, 100, 0.2)
        assert sum(cluster.end_offsets(topic)) == produced["records"] + 1
        paced = c_client.run(program, "latency", cluster.bootstrap_servers, topic.name, 1, 100, 0.2, 500)
        assert 50 < paced["records"] <= 101
        assert 0 < paced["p50_ms"] <= paced["p99_ms"]


@pytest.mark.proves("F2")
def test_every_group_reads_all_records(tmp_path: Path) -> None:
    with own_broker(tmp_path) as cluster, Generator() as generator, ExitStack() as stack:
        bench = Bench(cluster, generator, tmp_path, 2, 1, lambda _: None)
        found = fan_out(Shape(10, 100), bytes_per_s=200_000, groups=3)(bench, stack, 1.0)()
        written_per_s = 200_000 / len(Shape(10, 100).batch()) * 10
        assert found.per_s is not None
        assert 0.5 * written_per_s < found.per_s < 1.1 * written_per_s + 20
        assert found.cpu_us is not None
        assert found.p99_ms is not None


@pytest.mark.proves("F1")
@pytest.mark.parametrize(("p99_ms", "per_s", "met"), [(2.0, 100.0, True), (1.0, 100.0, False), (2.0, 101.0, False)])
def test_promised_figure_needs_latency_and_rate(p99_ms: float, per_s: float, met: bool) -> None:
    row = compared([Figures(per_s=100, p99_ms=2.0)], [])
    assert is_met([row], "a row", p99_ms=p99_ms, per_s=per_s) is met
    assert is_met([row], "another row", p99_ms=p99_ms) is None


def test_core_carries_what_its_cpu_time_allows() -> None:
    row = Compared("a row", "record", {MOLDAU: [Figures(cpu_us=0.5)]})
    assert [(each.subject, each.records_per_s) for each in cores([row])] == [(MOLDAU, 2e6)]
