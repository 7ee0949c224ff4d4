"""The examples of the delivery guide: each crashes in the middle, is rerun, and keeps its delivery guarantee."""

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import moldau
from moldau.testing import Broker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "delivery"
COUNT, CRASH_AT = 20, 7

pytestmark = pytest.mark.proves("C6")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}) as broker:
        with moldau.connect(broker.bootstrap_servers) as connection:
            connection.create_topic("payments")
            for number in range(COUNT):
                connection.publish("payments", str(number))
        yield broker


def _run(broker: Broker, name: str, results: Path, crash_at: int = -1) -> int:
    return subprocess.run(
        [
            sys.executable,
            str(EXAMPLES / name),
            "--bootstrap-servers",
            broker.bootstrap_servers,
            "--results",
            str(results),
            "--crash-at",
            str(crash_at),
        ],
        timeout=110,
        capture_output=True,
    ).returncode


def _crash_and_rerun(broker: Broker, name: str, results: Path) -> None:
    assert _run(broker, name, results, CRASH_AT) == 1
    assert _run(broker, name, results) == 0


def test_at_most_once_loses_the_message_of_the_crash(broker: Broker, tmp_path: Path) -> None:
    _crash_and_rerun(broker, "at_most_once.py", tmp_path / "results")
    seen = (tmp_path / "results").read_text().split()
    assert seen == [str(number) for number in range(COUNT) if number != CRASH_AT]


def test_at_least_once_repeats_uncommitted_messages(broker: Broker, tmp_path: Path) -> None:
    _crash_and_rerun(broker, "at_least_once.py", tmp_path / "results")
    seen = Counter((tmp_path / "results").read_text().split())
    assert set(seen) == {str(number) for number in range(COUNT)}
    assert seen[str(CRASH_AT)] == 2


def test_exactly_once_has_every_message_once(broker: Broker, tmp_path: Path) -> None:
    _crash_and_rerun(broker, "exactly_once.py", tmp_path / "results")
    with closing(sqlite3.connect(tmp_path / "results")) as results:
        rows = results.execute("select message from results").fetchall()
    assert [row[0] for row in rows] == [str(number) for number in range(COUNT)]
