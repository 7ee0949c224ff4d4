"""The examples of the transaction guide: each crashes in the middle, is rerun, and writes every result once."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

import moldau
from moldau.testing import Broker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "transactions"
PROGRAMS = ("transform_confluent.py", "transform_aiokafka.py")
COUNT, CRASH_AT = 20, 7

pytestmark = pytest.mark.proves("C6", "P3")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.num.partitions": 3,
    }
    with Broker(settings=settings) as broker:
        yield broker


def _run(broker: Broker, program: str, source: str, target: str, crash_at: int = -1) -> tuple[int, str]:
    options = {
        "--bootstrap-servers": broker.bootstrap_servers,
        "--source": source,
        "--target": target,
        "--group": target,
        "--name": target,
        "--idle-s": "6",
        "--crash-at": str(crash_at),
    }
    words = [word for option in options.items() for word in option]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *words], timeout=50, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def _read(broker: Broker, topic: str, isolation: str, count: int) -> list[str | None]:
    with (
        moldau.connect(broker.bootstrap_servers, isolation_level=isolation) as connection,
        connection.consume(topic, start="earliest", idle_s=20) as messages,
    ):
        return [message.text for message in islice(messages, count)]


def _crash_and_rerun(broker: Broker, program: str) -> None:
    source, target = f"payments of {program}".replace(" ", "-"), f"receipts of {program}".replace(" ", "-")
    with moldau.connect(broker.bootstrap_servers) as connection:
        connection.create_topic(source)
        connection.create_topic(target)
        for number in range(COUNT):
            connection.publish(source, str(number))
    code, said = _run(broker, program, source, target, CRASH_AT)
    assert code == 1, said
    code, said = _run(broker, program, source, target)
    assert code == 0, said
    assert _read(broker, target, "read_committed", COUNT) == [f"receipt for {number}" for number in range(COUNT)]
    # The crash left uncommitted records in the log.
    assert len(_read(broker, target, "read_uncommitted", COUNT + 1)) == COUNT + 1


def test_every_receipt_is_written_once_despite_a_crash(broker: Broker) -> None:
    """Both run at the same time, since each ends with a wait for further records."""
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(_crash_and_rerun, broker, program) for program in PROGRAMS]:
            done.result()
