"""`moldau produce` and `moldau consume` with values of registered schemas, beside Confluent's serializers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from served_registry import RegistryClient, record

from moldau.cli.errors import CommandError
from moldau.cli.schema_values import Form, ValueEncoder, connect_registry, formatter_of
from moldau.records.record import Record
from moldau.schemas.wire_format import frame
from moldau.testing import Broker

VALUE = MessageField.VALUE
PROTO = 'syntax = "proto3"; package shop; message Head { int32 n = 1; } message Order { int64 id = 1; Head head = 2; }'
JSON_SCHEMA = '{"title":"Order","type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}'


class Commands:
    """Runs commands against one broker and one registry."""

    def __init__(self, broker: Broker, registry: RegistryClient) -> None:
        self.bootstrap, self.url = broker.bootstrap_servers, registry.url

    def run(self, name: str, *options: str, lines: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "moldau.cli.main", name, *options, "-b", self.bootstrap]
        command += ["--registry", self.url]
        return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=False)

    def produce(self, topic: str, lines: list[str], *options: str) -> None:
        done = self.run("produce", topic, *options, lines="\n".join(lines) + "\n")
        assert done.returncode == 0, done.stderr

    def consume(self, topic: str, *options: str) -> list[Any]:
        done = self.run("consume", topic, "--until", "end", *options)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def commands(broker: Broker, registry: RegistryClient) -> Commands:
    return Commands(broker, registry)


@pytest.fixture
def client(registry: RegistryClient) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as connected:
        yield connected


def values_of(broker: Broker, topic: str, count: int, deserialize: Any, part: MessageField = VALUE) -> list[Any]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(count, timeout=30)
        parts = [message.key() if part == MessageField.KEY else message.value() for message in messages]
        return [deserialize(each, SerializationContext(topic, part)) for each in parts]
    finally:
        consumer.close()


@pytest.mark.proves("A6", part="commands")
def test_avro_lines_are_read_by_confluents_deserializer_and_back(
    broker: Broker, commands: Commands, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(record("Order", id="long", note=(["null", "string"], None)))
    lines = ['{"id": 1}', '{"id": 2, "note": "x"}']
    commands.produce("cli-avro", lines, "--value-format", "avro", "--value-schema", str(schema))
    commands.produce("cli-avro", ['{"id": 3}'], "--value-format", "avro")  # with the schema that is registered now
    found = values_of(broker, "cli-avro", 3, AvroDeserializer(client))
    assert found == [{"id": 1, "note": None}, {"id": 2, "note": "x"}, {"id": 3, "note": None}]
    shown = commands.consume("cli-avro", "--value-format", "avro", "--json")
    assert [each["value"] for each in shown] == [
        {"id": 1, "note": None},
        {"id": 2, "note": {"string": "x"}},
        {"id": 3, "note": None},
    ]


@pytest.mark.proves("A6", part="commands")
def test_keys_and_values_of_other_types(
    broker: Broker, commands: Commands, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    proto, key = tmp_path / "order.proto", tmp_path / "key.json"
    proto.write_text(PROTO)
    key.write_text(JSON_SCHEMA)
    options = ["--value-format", "protobuf", "--key-format", "jsonschema"]
    chosen = ["--value-schema", str(proto), "--value-message", "shop.Order", "--key-schema", str(key)]
    commands.produce("cli-mixed", ['{"id":5}|{"id": "7", "head": {"n": 1}}'], "-K", "|", *options, *chosen)
    (shown,) = commands.consume("cli-mixed", "--json", *options)
    assert (shown["key"], shown["value"]) == ({"id": 5}, {"id": "7", "head": {"n": 1}})
    deserialize = JSONDeserializer(None, schema_registry_client=client)
    assert values_of(broker, "cli-mixed", 1, deserialize, MessageField.KEY) == [{"id": 5}]


@pytest.mark.proves("A6", part="commands")
def test_values_that_do_not_fit_are_named(broker: Broker, commands: Commands, client: SchemaRegistryClient) -> None:
    serialize = AvroSerializer(client, record("Fitting", id="long"))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("cli-fit", serialize({"id": 1}, SerializationContext("cli-fit", MessageField.VALUE)), partition=0)
    producer.produce("cli-fit", b"plain", partition=0)
    assert producer.flush(30) == 0
    failed = commands.run("produce", "cli-fit", "--value-format", "avro", lines='{"id": 1}\n{"id": "x"}\n')
    assert failed.returncode != 0
    assert ":2: value.id: expected long, found 'x'" in failed.stderr
    failed = commands.run("consume", "cli-fit", "--value-format", "avro", "--until", "end")
    assert failed.stdout == '{"id":1}\n'
    assert "offset 1: the value cannot be decoded: no schema id" in failed.stderr


def test_formatter_names_another_type_and_what_is_missing(registry: RegistryClient) -> None:
    schema_id = registry.register("formatted-value", '"long"').body["id"]
    value = Record(5, 0, None, frame(schema_id, b"\2"), ())
    avro = {"key": Form.BYTES, "value": Form.AVRO}
    assert formatter_of("%k%v", registry.url, avro)("t", 0, value) == b"1\n"
    with pytest.raises(CommandError, match="of the value is AVRO, not PROTOBUF"):
        formatter_of("%v", registry.url, {"key": Form.BYTES, "value": Form.PROTOBUF})("t", 0, value)
    with pytest.raises(CommandError, match="does not respond"):
        formatter_of("%v", "http://127.0.0.1:1", avro)("t", 0, value)
    with pytest.raises(CommandError, match="Subject 'no-such-value' not found"):
        ValueEncoder(connect_registry(registry.url), Form.AVRO, "latest", "no-such-value", None)
