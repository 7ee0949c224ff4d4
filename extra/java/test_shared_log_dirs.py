"""Moldau starts on a folder that Apache Kafka wrote, and Apache Kafka on one that Moldau wrote."""

import json
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from apache_kafka import ApacheKafka, has_java
from confluent_kafka import admin
from sample_records import PLAIN, TRANSACTIONAL, Row, commit_offsets, end_offset, fill_plain, fill_transactions, read
from secured_dirs import (
    SHA_256,
    SHA_512,
    Secured,
    SecuredKafka,
    SecuredMoldau,
    alter_quotas,
    alter_users,
    create_acls,
    create_token,
    create_topic,
    delete_acls_of,
    described,
    produces,
    until,
    user,
)

from moldau.machines.access.acls import Operation, PatternType, Permission, ResourceKind
from moldau.testing import Broker

pytestmark = [
    pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"),
    pytest.mark.proves("S2"),
    pytest.mark.timeout(240),
]

SETTINGS = {"moldau.metrics.listener": "", "log.segment.bytes": 1_048_576}
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPICS, GROUPS = ResourceKind.TOPIC, ResourceKind.GROUP
ALLOW, DENY = Permission.ALLOW, Permission.DENY


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


def secure(broker: Secured) -> None:
    """Users of both mechanisms, ACLs of all kinds, quotas of all entities, and a token."""
    create_topic(broker)
    alter_users(
        broker,
        user("alice", SHA_512, "of alice", 8192),
        user("alice", SHA_256, "of alice too"),
        user("j=m,ller", SHA_256, "ein Paßwort"),
        user("peggy", SHA_512, "of peggy"),
    )
    create_acls(
        broker,
        (TOPICS, "orders", LITERAL, "User:alice", "*", Operation.WRITE, ALLOW),
        (TOPICS, "ord", PREFIXED, "User:j=m,ller", "127.0.0.1", Operation.ALL, ALLOW),
        (TOPICS, "*", LITERAL, "User:*", "10.1.2.3", Operation.READ, DENY),
        (GROUPS, "billing", PREFIXED, "User:alice", "*", Operation.READ, ALLOW),
        (ResourceKind.CLUSTER, "kafka-cluster", LITERAL, "User:alice", "*", Operation.IDEMPOTENT_WRITE, ALLOW),
        (ResourceKind.TRANSACTIONAL_ID, "tx", LITERAL, "User:alice", "*", Operation.TWO_PHASE_COMMIT, ALLOW),
        (ResourceKind.DELEGATION_TOKEN, "id", LITERAL, "User:alice", "*", Operation.DESCRIBE, ALLOW),
        (ResourceKind.USER, "User:bob", LITERAL, "User:alice", "*", Operation.CREATE_TOKENS, ALLOW),
    )
    alter_quotas(broker, {"user": "alice"}, producer_byte_rate=1e6, consumer_byte_rate=1024, request_percentage=200)
    alter_quotas(broker, {"user": None, "client-id": "app"}, controller_mutation_rate=7)
    alter_quotas(broker, {"user": "j=m,ller", "client-id": None}, request_percentage=12.5)
    alter_quotas(broker, {"client-id": None}, producer_byte_rate=1e9)
    alter_quotas(broker, {"ip": "127.0.0.9"}, connection_creation_rate=3)
    alter_quotas(broker, {"ip": None}, connection_creation_rate=1000)


def change(broker: Secured) -> None:
    """What the other broker must apply to what the first one has written.

    Apache Kafka 4.3.1 loses credentials when it replays a removal that leaves a mechanism without users for a moment:
    its maps iterate over `alice` before `peggy`.
    """
    removed = admin.UserScramCredentialDeletion("peggy", SHA_512)
    alter_users(broker, user("alice", SHA_512, "new", 4096), removed, user("bob", SHA_256, "of bob"))
    delete_acls_of(broker, "User:*")
    create_acls(broker, (TOPICS, "orders", LITERAL, "User:bob", "*", Operation.WRITE, DENY))
    alter_quotas(broker, {"user": "alice"}, consumer_byte_rate=None, producer_byte_rate=2e6)
    alter_quotas(broker, {"client-id": None}, producer_byte_rate=None)
    alter_quotas(broker, {"user": "bob"}, request_percentage=1)
    create_token(broker)


@pytest.mark.parametrize("brokers", [(SecuredKafka, SecuredMoldau), (SecuredMoldau, SecuredKafka)])
def test_users_acls_quotas_and_tokens_are_shared(brokers: tuple[type[Secured], type[Secured]], tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, second = brokers
    with first(data) as broker:
        secure(broker)
        create_token(broker)
        until(lambda: [len(each) for each in described(broker).values()], [8, 6, 3, 1])
        before = described(broker)
    with second(data) as broker:
        assert described(broker) == before
        assert produces(broker, "alice", SHA_512, "of alice") == ""
        assert produces(broker, "alice", SHA_256, "of alice too") == ""
        assert produces(broker, "j=m,ller", SHA_256, "ein Paßwort") == ""
        assert produces(broker, "alice", SHA_512, "wrong") == "_AUTHENTICATION"
        assert produces(broker, "peggy", SHA_512, "of peggy") == "TOPIC_AUTHORIZATION_FAILED"
        change(broker)
        until(lambda: [len(each) for each in described(broker).values()], [8, 6, 3, 2])
        after = described(broker)
    assert all(before[kind] != after[kind] for kind in before)
    with first(data) as broker:
        assert described(broker) == after
        assert produces(broker, "alice", SHA_512, "new") == ""
        assert produces(broker, "alice", SHA_512, "of alice") == "_AUTHENTICATION"
        assert produces(broker, "peggy", SHA_512, "of peggy") == "_AUTHENTICATION"
        assert produces(broker, "bob", SHA_256, "of bob") == "TOPIC_AUTHORIZATION_FAILED"
