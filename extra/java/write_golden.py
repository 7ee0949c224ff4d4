"""Writes the golden data folders under tests/golden: one by Apache Kafka, one by this version of Moldau.

Run it by hand when there is something new worth keeping; older folders stay, every later version must open them.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from apache_kafka import HERE, ApacheKafka
from sample_records import PLAIN, TRANSACTIONAL, Row, commit_offsets, fill_plain, fill_transactions

from moldau import __version__
from moldau.testing import Broker

GOLDEN = HERE.parents[1] / "tests/golden"
KAFKA_VERSION = "4.3.1"


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "kafka"
        with ApacheKafka(data) as kafka:
            rows = fill_plain(kafka.bootstrap_servers)
            committed = fill_transactions(kafka.bootstrap_servers)
            commit_offsets(kafka.bootstrap_servers)
        keep(data, f"kafka-{KAFKA_VERSION}", {PLAIN: rows, TRANSACTIONAL: committed})
        data = Path(temporary) / "moldau"
        with Broker(data=data, settings={"moldau.metrics.listener": "", "log.index.interval.bytes": 200}) as broker:
            rows = fill_plain(broker.bootstrap_servers)
        keep(data, f"moldau-{__version__}", {PLAIN: rows})


def keep(data: Path, name: str, expected: dict[str, Sequence[Row]]) -> None:
    """Save the log dir, and the committed records of partition 0 of each topic."""
    target = GOLDEN / name
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(data, target / "data", ignore=shutil.ignore_patterns(".lock", ".boot-id"))
    rows = {topic: [[row.offset, text(row.key), text(row.value)] for row in each] for topic, each in expected.items()}
    (target / "expected.json").write_text(json.dumps(rows, indent=0) + "\n")
    print(f"{target}: {sum(path.stat().st_size for path in target.rglob('*') if path.is_file())} bytes")


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


if __name__ == "__main__":
    main()
