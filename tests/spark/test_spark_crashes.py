"""A query whose driver is killed in the middle of its commits, and comes back with other cores: exactly once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from spark_scene import produce

from moldau.testing.broker import Broker

HERE: Final = Path(__file__).parent
LIFE_S_MAX: Final = 400
READ_S_MAX: Final = 60
ROWS: Final = 900
SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.log.level": "OFF",
}
# Place, the first batch in which it counts, cores; whether the process that commits dies with the driver.
LIVES: Final = [
    ("marker read", 0, 2, True),
    ("publishing", 1, 1, True),
    ("publishing", 2, 2, False),
    ("flushed", 3, 3, True),
    ("committed", 4, 1, True),
    ("returned", 5, 2, True),
]


def live(plan: dict[str, Any]) -> tuple[int, str]:
    """A whole life of the driver: how it ended, and its last words."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "trapped_driver.py"), json.dumps(plan)],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=LIFE_S_MAX,
        check=False,
    )
    return done.returncode, done.stderr[-3000:]


def read_committed(broker: Broker, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "r"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    rows, missing = [], set(range(partitions))
    while missing:
        message = consumer.poll(READ_S_MAX)
        assert message is not None, "nothing comes, and the end is not reached"
        error = message.error()
        if error is None:
            rows.append((message.key() or b"", message.value() or b""))
        else:
            assert error.code() == KafkaError._PARTITION_EOF
            missing.discard(message.partition() or 0)
    consumer.close()
    return rows


@pytest.mark.proves("D2")
@pytest.mark.timeout(2400)  # seven sessions, one after the other
def test_every_row_is_out_once_though_the_driver_dies_at_each_place_of_a_commit(
    moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = moldau_broker.create_topic(f"{topic}-out", partitions=2)
    produce(moldau_broker, topic, ROWS)
    plan: dict[str, Any] = {
        "servers": moldau_broker.bootstrap_servers,
        "source": topic,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
        "rows_per_batch": ROWS // 9,
        "settings": SETTINGS,
    }
    for number, (place, first_batch, cores, with_committer) in enumerate(LIVES):
        note = tmp_path / f"fell-{number}"
        trap = {"place": place, "first_batch": first_batch, "note": str(note), "with_committer": with_committer}
        code, words = live({**plan, "master": f"local[{cores}]", "trap": trap})
        assert note.exists(), f"the trap at {place!r} did not fall: the life ended with {code}\n{words}"
        assert code == -signal.SIGKILL
    code, words = live({**plan, "master": "local[3]", "trap": {}})
    assert code == 0, words
    rows = read_committed(moldau_broker, target, 2)
    assert sorted(int(value) for _, value in rows) == list(range(ROWS))
    assert len({key for key, _ in rows}) == ROWS
    assert not list((tmp_path / "checkpoint").rglob("*.arrow"))
