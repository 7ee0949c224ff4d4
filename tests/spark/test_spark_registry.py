"""Registered values as typed columns: with confluent-kafka's serializers, our registry, and Spark."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.schemas.registry_client import RegistryClient
from moldau.testing.broker import Broker
from moldau_dev.spark import read_committed, reading
from pyspark_moldau.functions import from_registry, to_registry

FIRST = '{"type": "record", "name": "Click", "fields": [{"name": "id", "type": "int"}]}'
SECOND = (
    '{"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}, '
    '{"name": "page", "type": ["null", "string"], "default": null}]}'
)


@pytest.fixture(scope="module")
def registry(moldau_broker: Broker) -> Iterator[str]:
    with served_registry(moldau_broker.bootstrap_servers) as url:
        yield url


@contextmanager
def served_registry(bootstrap: str) -> Iterator[str]:
    """Run `moldau serve` on free ports."""
    ports = ("--listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0")
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "serve", "-b", bootstrap, *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            yield dict(each.split() for each in lines[1:])["registry"]
        finally:
            process.kill()


def produce(broker: Broker, registry: str, topic: str) -> None:
    """Produce values of two versions, and one that has no schema."""
    producer, context = (
        Producer({"bootstrap.servers": broker.bootstrap_servers}),
        SerializationContext(topic, MessageField.VALUE),
    )
    with SchemaRegistryClient({"url": registry}) as client:
        for schema, values in ((FIRST, [{"id": 1}, {"id": 2}]), (SECOND, [{"id": 3, "page": "/x"}])):
            serialize = AvroSerializer(client, schema)
            for value in values:
                producer.produce(topic, serialize(value, context), "k", partition=0)
    producer.produce(topic, b"plain", "k", partition=0)
    producer.produce(topic, None, "k", partition=0)
    assert producer.flush(30) == 0


@pytest.mark.proves("D7")
def test_registered_values_are_typed_columns(
    spark: Any, moldau_broker: Broker, topic: str, registry: str, tmp_path: Path
) -> None:
    produce(moldau_broker, registry, topic)
    expected = [(1, None), (2, None), (3, "/x"), None, None]
    typed = reading(
        spark.read, moldau_broker, topic, valueFormat="avro", schemaRegistry=registry, valueErrors="column"
    ).orderBy("offset")
    rows = typed.selectExpr("value", "value_error").collect()
    assert [row["value"] and tuple(row["value"]) for row in rows] == expected
    assert [row["value_error"] for row in rows] == [None] * 3 + ["the value does not begin with a schema id", None]

    plain = reading(spark.read, moldau_broker, topic).orderBy("offset")
    click = from_registry("value", registry, f"{topic}-value", errors="column")
    found = plain.select(click.alias("found")).selectExpr("found.value.id", "found.error is null as good").collect()
    assert [tuple(row) for row in found] == [(1, True), (2, True), (3, True), (None, False), (None, True)]

    other = moldau_broker.create_topic(f"{topic}.other", partitions=1)
    value = to_registry(typed["value"], registry, f"{other}-value", schema=SECOND)
    writer = typed.where("value is not null").select(value.alias("value")).write.format("moldau")
    writer.option("kafka.bootstrap.servers", moldau_broker.bootstrap_servers).option("topic", other).mode(
        "append"
    ).save()
    with SchemaRegistryClient({"url": registry}) as client:
        deserialize, context = AvroDeserializer(client), SerializationContext(other, MessageField.VALUE)
        values = [deserialize(each, context) for _, each in read_committed(moldau_broker, other, 1)]
    assert sorted(each["id"] for each in values) == [1, 2, 3]
    assert RegistryClient(registry).version(f"{other}-value").kind == "AVRO"

    letters = moldau_broker.create_topic(f"{topic}.dead", partitions=1)
    words = [
        "pipeline",
        "run",
        "lake",
        topic,
        "--to",
        "delta",
        "--table",
        str(tmp_path / "clicks"),
        "--value",
        "registry",
    ]
    words += ["--registry", registry, "--dead-letters", letters, "--folder", str(tmp_path), "--once"]
    done = CliRunner().invoke(app, [*words, "--bootstrap-servers", moldau_broker.bootstrap_servers])
    assert done.exit_code == 0, done.output
    table = DeltaTable(tmp_path / "clicks").to_pyarrow_table().sort_by("_offset")
    assert [(row["id"], row["page"]) for row in table.to_pylist()] == [(1, None), (2, None), (3, "/x"), (None, None)]
    assert [each for _, each in read_committed(moldau_broker, letters, 1)] == [b"plain"]
