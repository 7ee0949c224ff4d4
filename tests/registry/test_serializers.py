"""Confluent's serializers for Python against the registry, through a topic of a real broker."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from served_registry import RegistryClient, record

from moldau.testing import Broker

JSON_SCHEMA = '{"title":"Order","type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}'


@pytest.fixture
def client(registry: RegistryClient) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as connected:
        yield connected


def round_trip(broker: Broker, topic: str, values: list[Any], serializer: Any, deserializer: Any) -> list[Any]:
    """Produce values and consume them again."""
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, serializer(value, context))
    assert producer.flush(30) == 0
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(len(values), timeout=30)
        return [deserializer(message.value(), context) for message in messages]
    finally:
        consumer.close()


def test_avro_round_trip(broker: Broker, client: SchemaRegistryClient) -> None:
    schema = record("Order", id="long", note=(["null", "string"], None))
    values = [{"id": number, "note": None if number % 2 else "x"} for number in range(5)]
    found = round_trip(broker, "avro-orders", values, AvroSerializer(client, schema), AvroDeserializer(client))
    assert found == values
    assert client.get_latest_version("avro-orders-value").version == 1


def test_json_round_trip(broker: Broker, client: SchemaRegistryClient) -> None:
    values = [{"id": number} for number in range(5)]
    serializer = JSONSerializer(JSON_SCHEMA, client)
    found = round_trip(broker, "json-orders", values, serializer, JSONDeserializer(None, schema_registry_client=client))
    assert found == values


def message_class(package: str, *, dependency: str | None = None) -> Any:
    """A class of a message with a text, a list and, with a dependency, a message of another file."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="tags", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    if dependency is not None:
        file.dependency.append(f"{dependency}.proto")
        kind = f".{dependency}.Order"
        message.field.add(name="first", number=3, type=kinds.TYPE_MESSAGE, type_name=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Order"))


@pytest.mark.proves("A6", part="Confluent's API")
@pytest.mark.parametrize("dependency", [None, "inner"])
def test_protobuf_round_trip_with_and_without_import(
    broker: Broker, client: SchemaRegistryClient, dependency: str | None
) -> None:
    if dependency is not None:
        message_class(dependency)
    package = f"shop{len(dependency or '')}"
    kind = message_class(package, dependency=dependency)
    values = [kind(id=number, tags=["a", "b"]) for number in range(5)]
    if dependency is not None:
        for value in values:
            value.first.id = 7
    conf: dict[str, Any] = {"use.deprecated.format": False}
    found = round_trip(
        broker,
        f"proto-{package}",
        values,
        ProtobufSerializer(kind, client, conf),
        ProtobufDeserializer(kind, conf, client),
    )
    assert found == values
    registered = client.get_latest_version(f"proto-{package}-value")
    assert registered.schema.schema_type == "PROTOBUF"
    assert "message Order {" in str(registered.schema.schema_str)
    assert [each.name for each in registered.schema.references or []] == ([f"{dependency}.proto"] if dependency else [])


@pytest.mark.proves("A6", part="Confluent's API")
def test_incompatible_schema_is_rejected_with_the_reason(client: SchemaRegistryClient) -> None:
    client.register_schema("strict-value", Schema(record("A", a="int"), "AVRO"))
    with pytest.raises(SchemaRegistryError) as caught:
        client.register_schema("strict-value", Schema(record("A", a="int", b="int"), "AVRO"))
    assert (caught.value.http_status_code, caught.value.error_code) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in str(caught.value)


def test_client_manages_subjects_compatibility_and_versions(client: SchemaRegistryClient) -> None:
    first = client.register_schema("managed-value", Schema(record("A", a="int"), "AVRO"))
    client.set_compatibility("managed-value", "NONE")
    assert client.get_compatibility("managed-value") == "NONE"
    second = client.register_schema("managed-value", Schema(record("A", a="string"), "AVRO"))
    assert second > first
    assert client.get_versions("managed-value") == [1, 2]
    assert client.lookup_schema("managed-value", Schema(record("A", a="int"), "AVRO")).version == 1
    assert client.test_compatibility("managed-value", Schema(record("B", b="bytes"), "AVRO"))
    assert client.delete_version("managed-value", 1) == 1
    assert client.delete_subject("managed-value") == [2]
    assert client.delete_subject("managed-value", permanent=True) == [1, 2]
    assert "managed-value" not in client.get_subjects()
