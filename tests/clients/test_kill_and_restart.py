"""Kill -9 under load: acknowledged records are kept once, in order. Clean restarts and directory locks."""

import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka as library
import pytest
from client_driver import WAIT_S, Sent
from client_driver_confluent import ConfluentKafka
from confluent_kafka import admin

from moldau.records.record import iterate_batches, iterate_records
from moldau.testing import Broker

KILLS: Final = int(os.environ.get("MOLDAU_KILLS", "4"))
SEED: Final = int(os.environ.get("MOLDAU_SEED", "0")) or time.time_ns() % 1_000_000
PARTITIONS: Final = 3
RUN_RECORDS: Final = 1500  # acknowledged between two kills, at least
UNACKNOWLEDGED_MAX: Final = 5000
SETTINGS: Final = {"moldau.metrics.listener": "", "log.segment.bytes": 1_048_576, "log.index.interval.bytes": 1024}


@dataclass
class Load:
    """An idempotent producer in its own thread that continues whatever happens to the broker."""

    broker: Broker
    topic: str
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)  # partition and offset of each number
    failures: list[str] = field(default_factory=list)
    sent: int = 0
    _enough: int = 1 << 62
    _has_enough: threading.Event = field(default_factory=threading.Event)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Load":
        self._producer = library.Producer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 100,
                "logger": _SilentLogger(),
            }
        )
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def finish(self) -> None:
        """Send no more and wait until everything has been acknowledged or given up."""
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(120) == 0, "records are in flight"

    def wait_for_more(self, count: int) -> None:
        """Wait until `count` more records have been acknowledged."""
        self._enough = len(self.acknowledged) + count
        self._has_enough.clear()
        assert self._has_enough.wait(60), f"only {len(self.acknowledged)} records were acknowledged"

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self.sent - len(self.acknowledged) < UNACKNOWLEDGED_MAX and not self.failures:
                value = b"%d %s" % (self.sent, b"." * (self.sent % 300))
                self._producer.produce(self.topic, value, partition=self.sent % PARTITIONS, on_delivery=self._settle)
                self.sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.01)

    def _settle(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.partition(), message.offset()] = number_in(message.value())
        if len(self.acknowledged) >= self._enough or self.failures:
            self._has_enough.set()


class _SilentLogger:
    """Drops librdkafka's messages about lost connections."""

    def log(self, *_: object) -> None:
        return


def number_in(value: bytes) -> int:
    return int(value.split()[0])


def read_everything(broker: Broker, topic: str) -> dict[tuple[int, int], int]:
    """Every record that a consumer sees, by partition and offset; the offsets have no gap."""
    client = ConfluentKafka(broker.bootstrap_servers)
    seen: dict[tuple[int, int], int] = {}
    for partition in range(PARTITIONS):
        first, end = client.watermarks(topic, partition)
        records = client.consume(topic, end - first, offsets={partition: first}) if end > first else []
        assert [record.offset for record in records] == list(range(end))
        seen.update({(partition, record.offset): number_in(record.value or b"") for record in records})
    client.close()
    return seen


def check(load: Load, seen: dict[tuple[int, int], int]) -> None:
    """Check that acknowledged records are at their offsets, in order and without duplicates."""
    assert not load.failures
    wrong = {at: number for at, number in load.acknowledged.items() if seen.get(at) != number}
    assert not wrong, f"{len(wrong)} acknowledged records are lost or moved, the first: {next(iter(wrong.items()))}"
    assert len(set(seen.values())) == len(seen), "records are duplicated"
    for partition in range(PARTITIONS):
        numbers = [number for (where, _), number in sorted(seen.items()) if where == partition]
        assert numbers == list(range(partition, load.sent, PARTITIONS))


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker


@pytest.mark.timeout(60 + 20 * KILLS)
@pytest.mark.proves("S8", "P2", "S6")
def test_kills_under_load_lose_or_duplicate_no_acknowledged_record(own_broker: Broker) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    own_broker.create_topic("load", partitions=PARTITIONS)
    with Load(own_broker, "load") as load:
        for _ in range(KILLS):
            load.wait_for_more(chance.randrange(1, RUN_RECORDS))
            own_broker.kill()
            own_broker.start()
        load.wait_for_more(RUN_RECORDS)
        load.finish()
    check(load, read_everything(own_broker, "load"))
    own_broker.restart()
    check(load, read_everything(own_broker, "load"))
    print(f"{load.sent} records")


@pytest.mark.proves("S8")
def test_broker_killed_during_startup_starts_again(own_broker: Broker) -> None:
    own_broker.create_topic("load", partitions=PARTITIONS)
    client = ConfluentKafka(own_broker.bootstrap_servers)
    client.produce("load", [Sent(b"%d" % n, partition=n % PARTITIONS) for n in range(300)], is_idempotent=True)
    client.close()
    own_broker.kill()
    for wait_s in (0.05, 0.15, 0.25, 0.35):
        process = subprocess.Popen(
            [*own_broker.command, "start", "--data", str(own_broker.data), "--listen", "[::1]:0"]
        )
        time.sleep(wait_s)  # any moment before it is ready is valid, and none can be observed
        process.kill()
        process.wait()
    own_broker.start()
    assert sorted(read_everything(own_broker, "load").values()) == list(range(300))


def test_clean_restart_keeps_all_records_and_skips_recovery(own_broker: Broker) -> None:
    own_broker.create_topic("load", partitions=PARTITIONS)
    with Load(own_broker, "load") as load:
        for _ in range(2):
            load.wait_for_more(RUN_RECORDS)
            own_broker.restart()
            assert (own_broker.data / ".kafka_cleanshutdown").exists() is False, "the clean shutdown file exists"
        load.finish()
    check(load, read_everything(own_broker, "load"))
    own_broker.stop()
    assert (own_broker.data / ".kafka_cleanshutdown").exists()


def test_topics_and_configs_survive_a_kill(own_broker: Broker) -> None:
    client = ConfluentKafka(own_broker.bootstrap_servers)
    client.create_topic("kept", partitions=4, config={"retention.ms": "123456"})
    client.create_topic("gone")
    client.delete_topic("gone")
    client.alter_config("kept", {"max.message.bytes": "54321"})
    cluster_id = client.cluster().cluster_id
    topics: Any = admin.AdminClient({"bootstrap.servers": own_broker.bootstrap_servers}).list_topics(timeout=WAIT_S)
    client.close()
    own_broker.kill()
    own_broker.start()
    client = ConfluentKafka(own_broker.bootstrap_servers)
    assert client.topics() == {"kept"} == set(topics.topics)
    assert client.partition_count("kept") == 4
    config = client.config("kept")
    assert (config["retention.ms"], config["max.message.bytes"]) == ("123456", "54321")
    assert client.cluster().cluster_id == cluster_id
    client.close()


@pytest.mark.proves("S4", part="DeleteRecords")
def test_deleted_records_stay_deleted_after_a_kill(own_broker: Broker) -> None:
    client = ConfluentKafka(own_broker.bootstrap_servers)
    client.create_topic("cut")
    client.produce("cut", [Sent(b"%d" % number) for number in range(10)])
    assert client.delete_records("cut", 7) == 7
    own_broker.kill()
    own_broker.start()
    assert client.watermarks("cut") == (7, 10)
    client.close()


def test_torn_tail_is_truncated_and_the_log_continues(own_broker: Broker) -> None:
    own_broker.create_topic("torn")
    client = ConfluentKafka(own_broker.bootstrap_servers)
    client.produce("torn", [Sent(b"%d" % number) for number in range(10)])
    own_broker.kill()
    segment: Path = own_broker.data / "torn-0" / f"{0:020d}.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[:50])
    own_broker.start()
    assert client.produce("torn", [Sent(b"10")]) == [10]
    own_broker.stop()
    batches = [batch for _, batch in iterate_batches(segment.read_bytes())]
    assert [record.offset for batch in batches for record in iterate_records(batch)] == list(range(11))
    client.close()


def test_second_broker_on_the_same_directory_is_rejected(own_broker: Broker) -> None:
    second = subprocess.run(
        [*own_broker.command, "start", "--data", str(own_broker.data), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode != 0
    assert "Traceback" not in second.stderr
    assert str(own_broker.data) in second.stderr
    assert "another" in second.stderr or "in use" in second.stderr
    own_broker.create_topic("still-serving")


def test_second_broker_on_the_same_port_is_rejected(own_broker: Broker, tmp_path: Path) -> None:
    second = subprocess.run(
        [*own_broker.command, "start", "--data", str(tmp_path / "other"), "--listen", own_broker.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode != 0
    assert "Traceback" not in second.stderr
    assert own_broker.bootstrap_servers in second.stderr
