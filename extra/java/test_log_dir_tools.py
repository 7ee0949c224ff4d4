"""Kafka's tools move replicas between the log dirs of Moldau, and both continue on several log dirs of the other."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from apache_kafka import ApacheKafka, free_ports, has_java, java, run
from confluent_kafka import admin

from moldau.testing import Broker

pytestmark = [
    pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"),
    pytest.mark.proves("A1", "S2", "S11"),
    pytest.mark.timeout(240),
]

PARTITIONS = 4


@contextmanager
def moldau_on(folders: list[Path]) -> Iterator[str]:
    """Run a broker with these log dirs; yield its bootstrap servers."""
    (port,) = free_ports(1)
    settings = folders[0].parent / "moldau.properties"
    settings.write_text(
        f"node.id=1\nlisteners=PLAINTEXT://localhost:{port}\nmoldau.metrics.listener=\n"
        f"log.dirs={','.join(map(str, folders))}\n"
    )
    log = folders[0].parent / "moldau.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*Broker.command, "start", "--config", str(settings)], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(f"localhost:{port}", process, log)
        yield f"localhost:{port}"
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_for(servers: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    client = admin.AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            if client.list_topics(timeout=1).brokers:
                return
        except confluent_kafka.KafkaException:
            continue
    raise AssertionError(f"the broker is not ready:\n{log.read_text()[-4000:]}")


def fill(servers: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": servers})
    client.create_topics([admin.NewTopic("t", PARTITIONS, 1)])["t"].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for number in range(400):
        producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def values(servers: str) -> set[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition("t", index, 0) for index in range(PARTITIONS)])
    found: set[int] = set()
    deadline_s = time.monotonic() + 30
    while len(found) < 400 and time.monotonic() < deadline_s:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add(int(message.value() or b"-1"))
    consumer.close()
    return found


def in_folder(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("t-[0-9]"))


def described(servers: str) -> dict[str, Any]:
    options = ["--bootstrap-server", servers, "--describe", "--topic-list", "t"]
    said = run(java("org.apache.kafka.tools.LogDirsCommand", *options))
    (broker,) = json.loads(said.splitlines()[-1])["brokers"]
    return {each["logDir"]: each for each in broker["logDirs"]}


def reassign(servers: str, plan: Path, action: str, *options: str) -> str:
    arguments = ["--bootstrap-server", servers, "--reassignment-json-file", str(plan), action, *options]
    return run(java("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *arguments))


def test_tools_of_kafka_describe_log_dirs_and_move_replicas(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with moldau_on(folders) as servers:
        fill(servers)
        assert [len(in_folder(each)) for each in folders] == [2, 2]
        before = described(servers)
        assert set(before) == set(map(str, folders))
        assert [len(before[str(each)]["partitions"]) for each in folders] == [2, 2]
        assert all(each["error"] is None for each in before.values())
        plan = tmp_path / "plan.json"
        target = str(folders[1])
        moves = [
            {"topic": "t", "partition": index, "replicas": [1], "log_dirs": [target]} for index in range(PARTITIONS)
        ]
        plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        reassign(servers, plan, "--execute", "--replica-alter-log-dirs-throttle", "100000000")
        deadline_s = time.monotonic() + 30
        while "still in progress" in (said := reassign(servers, plan, "--verify")) and time.monotonic() < deadline_s:
            pass
        assert said.count("completed successfully") == PARTITIONS, said
        assert [in_folder(each) for each in folders] == [[], [0, 1, 2, 3]]
        assert values(servers) == set(range(400))
        after = described(servers)[target]["partitions"]
        assert all(not each["isFuture"] and each["size"] > 0 for each in after)
    with moldau_on(folders) as servers:
        assert values(servers) == set(range(400))


def test_kafka_and_moldau_continue_on_several_log_dirs_of_the_other(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    dirs = ",".join(map(str, folders))
    with ApacheKafka(folders[0], settings={"log.dirs": dirs}) as kafka:
        fill(kafka.bootstrap_servers)
    places = [in_folder(each) for each in folders]
    assert all(places)
    with moldau_on(folders) as servers:
        assert values(servers) == set(range(400))
    assert [in_folder(each) for each in folders] == places
    with ApacheKafka(folders[0], settings={"log.dirs": dirs}) as kafka:
        assert values(kafka.bootstrap_servers) == set(range(400))
    assert [in_folder(each) for each in folders] == places


def test_kafka_continues_on_several_log_dirs_that_moldau_formatted(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with moldau_on(folders) as servers:
        fill(servers)
    places = [in_folder(each) for each in folders]
    with ApacheKafka(folders[0], settings={"log.dirs": ",".join(map(str, folders))}) as kafka:
        assert values(kafka.bootstrap_servers) == set(range(400))
    assert [in_folder(each) for each in folders] == places
