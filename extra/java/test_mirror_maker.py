"""MirrorMaker 2 between Moldau and Apache Kafka: records of a topic, and its ACLs."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest
from apache_kafka import STOP_S_MAX, has_java, java
from sample_records import read
from secured_dirs import TOPIC, Secured, SecuredKafka, SecuredMoldau, create_acls, create_topic, described, until

from moldau.machines.access.acls import Operation, PatternType, Permission, ResourceKind

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.timeout(180)]

MIRROR: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
SETTINGS: Final = """
clusters=a,b
a->b.enabled=true
a->b.topics=orders
b->a.enabled=false
sync.topic.acls.enabled=true
sync.topic.acls.interval.seconds=1
refresh.topics.interval.seconds=1
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
"""


@contextmanager
def mirror(source: Secured, target: Secured, folder: Path) -> Iterator[None]:
    config = folder / "mirror.properties"
    servers = f"a.bootstrap.servers={source.bootstrap_servers}\nb.bootstrap.servers={target.bootstrap_servers}\n"
    config.write_text(SETTINGS + servers)
    with (folder / "mirror.log").open("wb") as log:
        process = subprocess.Popen(java(MIRROR, str(config)), stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
        assert process.poll() is None, (folder / "mirror.log").read_text()[-4000:]
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        finally:
            process.kill()


def acl(name: str, principal: str, operation: Operation, permission: Permission) -> str:
    fields = {"principal": principal, "host": "*", "operation": operation.value, "permission_type": permission.value}
    return f"{ResourceKind.TOPIC} {name} {LITERAL} {fields}"


@pytest.mark.parametrize("brokers", [(SecuredKafka, SecuredMoldau), (SecuredMoldau, SecuredKafka)])
def test_records_and_acls_are_mirrored(brokers: tuple[type[Secured], type[Secured]], tmp_path: Path) -> None:
    """MirrorMaker copies the ACLs of a topic's own name, except those that allow to write; ALL becomes READ."""
    with brokers[0](tmp_path / "a") as source, brokers[1](tmp_path / "b") as target:
        create_topic(source)
        create_acls(
            source,
            (ResourceKind.TOPIC, TOPIC, LITERAL, "User:alice", "*", Operation.READ, ALLOW),
            (ResourceKind.TOPIC, TOPIC, LITERAL, "User:bob", "*", Operation.ALL, ALLOW),
            (ResourceKind.TOPIC, TOPIC, LITERAL, "User:dave", "*", Operation.WRITE, ALLOW),
            (ResourceKind.TOPIC, TOPIC, LITERAL, "User:eve", "*", Operation.READ, DENY),
            (ResourceKind.TOPIC, TOPIC, PREFIXED, "User:carol", "*", Operation.READ, ALLOW),
            (ResourceKind.GROUP, "billing", LITERAL, "User:alice", "*", Operation.READ, ALLOW),
        )
        producer = confluent_kafka.Producer({"bootstrap.servers": source.bootstrap_servers})
        producer.produce(TOPIC, b"value", b"key", partition=0)
        assert producer.flush(30) == 0
        copies = [
            acl(f"a.{TOPIC}", "User:alice", Operation.READ, ALLOW),
            acl(f"a.{TOPIC}", "User:bob", Operation.READ, ALLOW),
            acl(f"a.{TOPIC}", "User:eve", Operation.READ, DENY),
        ]
        with mirror(source, target, tmp_path):
            until(lambda: described(target)["ACLs"], copies)
            (row,) = read(target.bootstrap_servers, f"a.{TOPIC}", 1)
        assert (row.key, row.value) == (b"key", b"value")
