"""`moldau plan`: the formulas, with figures that published designs compute."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from moldau.cli.capacity import DAY_S, Plan, Target, parse_load, parse_size

TEN_TERABYTES_A_DAY = Target(bytes_per_s=10e12 / DAY_S, message_bytes=1_000, groups=5)


def figures(target: Target) -> dict[str, float]:
    return {each.name: each.value for each in Plan(target).figures()}


@pytest.mark.proves("T4")
def test_ten_terabytes_a_day_need_what_the_design_computes() -> None:
    found = figures(TEN_TERABYTES_A_DAY)
    assert round(found["messages"]) == 115_741
    assert round(found["messages at the peak"], -4) == 350_000
    assert round(found["writes"] / 1e6) == 116  # 115 in the design, rounded down
    assert found["network in"] == pytest.approx(345e6, rel=0.01)
    assert found["reads"] == pytest.approx(575e6, rel=0.01)
    assert found["data"] == pytest.approx(70e12)
    assert found["data of all replicas"] == pytest.approx(210e12)


@pytest.mark.proves("T4")
def test_partitions_cover_throughput_and_consumers() -> None:
    target = Target(bytes_per_s=500e6, message_bytes=1_000, peak_factor=1, consumers=10)
    assert Plan(target).partitions == 20
    assert Plan(replace(target, consumers=30)).partitions == 30
    assert Plan(replace(target, bytes_per_s=750e6)).partitions == 30
    assert Plan(replace(target, bytes_per_s=501e6)).partitions == 21


@pytest.mark.proves("T4")
@pytest.mark.parametrize(
    ("change", "name", "brokers"),
    [
        ({}, "disk", 34),  # 262.5 TB of 8 TB each
        ({"broker_disk_bytes": 100e12, "broker_network_bytes_per_s": 100e6}, "network", 26),
        ({"broker_disk_bytes": 1e15, "consumers": 20_000}, "partitions", 16),
        ({"broker_disk_bytes": 1e15, "replicas": 5, "broker_network_bytes_per_s": 1e12}, "replicas", 6),
    ],
)
def test_scarcest_resource_decides_and_one_broker_may_be_down(
    change: dict[str, float], name: str, brokers: int
) -> None:
    plan = Plan(replace(TEN_TERABYTES_A_DAY, **change))  # type: ignore[arg-type]
    assert max(plan.broker_limits, key=lambda each: plan.broker_limits[each]) == name
    assert plan.brokers == brokers


def test_compression_shrinks_disk_and_network() -> None:
    plain, packed = (figures(replace(TEN_TERABYTES_A_DAY, compression=each)) for each in (1.0, 4.0))
    for name in ("data", "disks", "reads", "network in"):
        assert packed[name] == pytest.approx(plain[name] / 4)
    assert packed["messages"] == plain["messages"]


def test_loads_and_sizes() -> None:
    assert parse_load("115MB/s", 1) == 115e6
    assert parse_load("10 tb/day", 1) == 10e12 / DAY_S
    assert parse_load("350000/s", 1_000) == 350e6
    assert parse_size("1.25GB") == 1.25e9
    for text in ("", "10", "10TB", "-1/s", "1e9/s", "10TB/year"):
        with pytest.raises(ValueError, match="is not a load"):
            parse_load(text, 1)
    with pytest.raises(ValueError, match="is not a size"):
        parse_size("0MB")


def test_command_shows_formulas_or_json() -> None:
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "plan", "10TB/day", "--groups", "5"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    assert "210 TB" in shown
    assert "3 replicas" in shown
    found = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=30).stdout)
    assert {each["name"]: each["unit"] for each in found}["brokers"] == ""
