"""Moldau starts on a folder that Apache Kafka wrote, and Apache Kafka on one that Moldau wrote."""

import json
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from apache_kafka import ApacheKafka, has_java
from sample_records import PLAIN, TRANSACTIONAL, Row, commit_offsets, end_offset, fill_plain, fill_transactions, read

from moldau.testing import Broker

pytestmark = [
    pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"),
    pytest.mark.proves("S2"),
    pytest.mark.timeout(240),
]

SETTINGS = {"moldau.metrics.listener": "", "log.segment.bytes": 1_048_576}


def add(servers: str, value: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    producer.produce(PLAIN, value, partition=0)
    assert producer.flush(30) == 0


def moldau(*arguments: str) -> Any:
    done = subprocess.run([*Broker.command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_moldau_continues_on_a_log_dir_of_kafka(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ApacheKafka(data) as kafka:
        rows = fill_plain(kafka.bootstrap_servers)
        committed = fill_transactions(kafka.bootstrap_servers)
        commit_offsets(kafka.bootstrap_servers)
    with Broker(data=data, settings=SETTINGS) as broker:
        servers = broker.bootstrap_servers
        assert read(servers, PLAIN, len(rows)) == rows
        assert read(servers, TRANSACTIONAL, len(committed)) == committed
        assert end_offset(servers, TRANSACTIONAL) == 15, "records of an open transaction were read"
        add(servers, b"by Moldau")
        assert read(servers, PLAIN, 1, first=len(rows))[0].value == b"by Moldau"


def test_kafka_continues_on_a_log_dir_of_moldau(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data=data, settings=SETTINGS) as broker:
        rows = fill_plain(broker.bootstrap_servers)
    with ApacheKafka(data) as kafka:
        assert read(kafka.bootstrap_servers, PLAIN, len(rows)) == rows
        add(kafka.bootstrap_servers, b"by Kafka")
        committed = fill_transactions(kafka.bootstrap_servers)
    rows.append(Row(len(rows), None, b"by Kafka"))
    with Broker(data=data, settings=SETTINGS) as broker:
        assert read(broker.bootstrap_servers, PLAIN, len(rows)) == rows
        assert read(broker.bootstrap_servers, TRANSACTIONAL, len(committed)) == committed


def test_kafka_recovers_a_log_dir_of_a_killed_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data=data, settings=SETTINGS) as broker:
        rows = fill_plain(broker.bootstrap_servers)
        broker.kill()
    with ApacheKafka(data) as kafka:
        assert read(kafka.bootstrap_servers, PLAIN, len(rows)) == rows


def test_log_dump_reads_all_files_of_kafka(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ApacheKafka(data, release="4.3") as kafka:
        rows = fill_plain(kafka.bootstrap_servers)
        fill_transactions(kafka.bootstrap_servers)
        commit_offsets(kafka.bootstrap_servers)
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        moldau("log", "dump", "--json", "--records", str(folder))
    said = json.dumps(moldau("log", "dump", "--json", "--records", str(data / f"{PLAIN}-0")))
    for row in rows:
        assert row.value is None or row.value.decode() in said
    said = json.dumps(moldau("log", "dump", "--json", "--records", str(data / "__cluster_metadata-0")))
    for words in ("RegisterBrokerRecord", "TopicRecord", "PartitionRecord", "ConfigRecord", "FeatureLevelRecord"):
        assert words in said
