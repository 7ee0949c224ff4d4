"""Readings of the kernel's and the broker's own figures."""

import os
import subprocess
import time

import pytest

from moldau.broker.metrics.catalogue import LOOP_STALL
from moldau.broker.metrics.prometheus_text import histogram
from moldau.broker.runtime.meters import LatencyMeter
from moldau.cli.bench import processes, stalls

STAT = (
    "4242 (a (strange) name) S 1 4242 4242 0 -1 4194560 2612 0 0 0 "
    "150 50 7 3 20 0 3 0 123456 1000000 2000 18446744073709551615 0 0"
)


def test_cpu_is_read_for_any_process_name() -> None:
    assert processes.parse_cpu_s(STAT, 100) == 2.0


def test_cpu_of_a_process_grows_while_it_works() -> None:
    before = processes.cpu_s(os.getpid())
    own = time.process_time()
    while time.process_time() < own + 0.02:
        pass
    assert 0.01 < processes.cpu_s(os.getpid()) - before < 1.0


def test_cpu_times_of_kernel_clock_and_proc_agree() -> None:
    with open("/proc/self/stat") as stat:
        reported = processes.parse_cpu_s(stat.read(), os.sysconf("SC_CLK_TCK"))
    assert processes.cpu_s(os.getpid()) == pytest.approx(reported, abs=0.1)


def test_memory_is_read_from_the_status() -> None:
    assert processes.parse_resident_bytes("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n") == 1234 * 1024
    assert processes.parse_resident_bytes("Name:\tx\nState:\tZ (zombie)\n") == 0


def test_own_memory_is_plausible() -> None:
    assert 5_000_000 < processes.memory_bytes(os.getpid()) < 10_000_000_000


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def wait_for_state(pid: int, states: str) -> None:
    while state_of(pid) not in states:
        os.sched_yield()


def test_frozen_children_use_no_cpu() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            with processes.frozen_children(os.getpid()):
                wait_for_state(child.pid, "T")
            wait_for_state(child.pid, "SR")
        finally:
            child.kill()


def page(meter: LatencyMeter) -> str:
    return '# HELP other\nother_bucket{le="1"} 5\n' + "".join(histogram(LOOP_STALL, meter))


def test_histogram_buckets_are_read_from_the_metrics_page() -> None:
    meter = LatencyMeter()
    for elapsed_ms in (0.003, 0.003, 5.0):
        meter.finished(elapsed_ms)
    read = stalls.parse_buckets(page(meter))
    assert [read[each] for each in (2e-6, 4e-6, 0.004096, 0.008192, float("inf"))] == [0, 2, 2, 3, 3]


def test_page_without_the_histogram_gives_no_figure() -> None:
    assert stalls.parse_buckets("up 1\n") == {}
    assert stalls.quantile_s({}, 0.99) is None


def test_stalls_between_two_readings_exclude_earlier_ones() -> None:
    meter = LatencyMeter()
    for _ in range(1000):
        meter.finished(40.0)
    before = stalls.parse_buckets(page(meter))
    for _ in range(99):
        meter.finished(0.5)
    meter.finished(7.0)
    after = stalls.parse_buckets(page(meter))
    fresh = stalls.since(before, after)
    assert stalls.quantile_s(fresh, 0.99) == 0.000512
    assert stalls.quantile_s(fresh, 0.995) == 0.008192


def test_no_new_stall_is_no_figure() -> None:
    meter = LatencyMeter()
    meter.finished(1.0)
    reading = stalls.parse_buckets(page(meter))
    assert stalls.quantile_s(stalls.since(reading, reading), 0.99) is None
