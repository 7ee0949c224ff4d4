"""The maximum number of partitions per broker: all written, the process killed, all read."""

import os
import time
from pathlib import Path
from typing import Any, Final

import confluent_kafka as library
import pytest
from confluent_kafka import TopicPartition

from moldau.testing import Broker

PARTITIONS: Final = 4000
START_S_MAX: Final = 20.0
REST_S: Final = 2.0
REST_CORES_MAX: Final = 0.1
WAIT_S: Final = 60.0

pytestmark = pytest.mark.proves("F3")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _produce_to_all(broker: Broker, topic: str) -> None:
    failures: list[Any] = []
    producer = library.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 50}
    )

    def settle(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    for partition in range(PARTITIONS):
        producer.produce(topic, b"%d" % partition, partition=partition, on_delivery=settle)
    assert producer.flush(WAIT_S) == 0
    assert not failures


def _read_all(broker: Broker, topic: str) -> dict[int | None, list[bytes | None]]:
    """Return the values of each partition once all have some."""
    consumer = library.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "all"})
    found: dict[int | None, list[bytes | None]] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        deadline = time.monotonic() + WAIT_S
        while len(found) < PARTITIONS and time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=0.5):
                assert message.error() is None
                found.setdefault(message.partition(), []).append(message.value())
    finally:
        consumer.close()
    return found


def test_broker_with_4000_partitions_is_idle_and_recovers(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data", settings={"moldau.metrics.listener": ""}) as broker:
        topic = broker.create_topic("many", partitions=PARTITIONS)
        _produce_to_all(broker, topic)
        broker.kill()
        began = time.monotonic()
        broker.start()
        assert time.monotonic() - began < START_S_MAX
        assert _read_all(broker, topic) == {partition: [b"%d" % partition] for partition in range(PARTITIONS)}
        before_s = _cpu_s(broker.pid)
        time.sleep(REST_S)  # measures an idle broker
        assert (_cpu_s(broker.pid) - before_s) / REST_S < REST_CORES_MAX
