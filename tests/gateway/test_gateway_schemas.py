"""Records with schemas through the gateway and the console: produced, read, filtered; and the pages of schemas."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from moldau.schemas.codecs import RegisteredSchema, compile_codec
from moldau.schemas.types import AVRO
from moldau.schemas.wire_format import frame
from moldau.testing import Broker
from moldau_dev.console import Browser
from moldau_dev.gateway import Gateway

ORDER = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":["null","string"]}]}'
)
NEWER = ORDER.replace("]}]}", ']},{"name":"sku","type":"string","default":""}]}')
PROTO = 'syntax = "proto3"; message Head { int32 n = 1; } message Order { int64 id = 1; Head head = 2; }'
JSON_SCHEMA = '{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}'


@pytest.fixture
def browser(gateway: Gateway) -> Browser:
    return Browser(gateway.url).open()


def produce(gateway: Gateway, topic: str, **body: Any) -> None:
    reply = gateway.post(f"/topics/{topic}/produce", body)
    assert reply.status == 200, reply.body


@pytest.mark.proves("A3", part="schemas")
@pytest.mark.parametrize(
    ("choice", "value", "shown"),
    [
        ({"schema": ORDER}, {"id": 1, "note": "x"}, {"id": 1, "note": {"string": "x"}}),
        ({"schema": PROTO, "type": "PROTOBUF", "message": "Order"}, {"id": "7"}, {"id": "7"}),
        ({"schema": JSON_SCHEMA, "type": "JSON"}, {"id": 1}, {"id": 1}),
    ],
)
def test_values_with_schemas_are_read_as_they_were_produced(
    gateway: Gateway, topic: str, choice: Any, value: Any, shown: Any
) -> None:
    produce(gateway, topic, value_schema=choice, records=[{"value": value, "partition": 0}, {"value": None}])
    subject = {"message": choice["message"]} if "message" in choice else {"subject": f"{topic}-value"}
    produce(gateway, topic, value_schema=subject, records=[{"value": value, "partition": 0}])
    found = [each for each in gateway.records(topic) if each["value"] is not None]
    assert [each["value"] for each in found] == [shown, shown]
    again = [{"value": each["value"], "value_schema_id": each["value_schema_id"]} for each in found]
    if "message" not in choice:
        produce(gateway, topic, records=again)
        assert [each["value"] for each in gateway.records(topic) if each["value"]] == [shown] * 4
    lines = gateway.get(f"/topics/{topic}/records?format=ndjson").body.splitlines()
    assert shown in [json.loads(line)["value"] for line in lines]


@pytest.mark.proves("A3", part="schemas")
def test_keys_have_schemas_too(gateway: Gateway, topic: str) -> None:
    records = [{"key": 5, "value": "plain"}, {"key": 5, "value": None}]
    produce(gateway, topic, key_schema={"schema": '"long"'}, records=records)
    found = gateway.records(topic)
    assert [(each["key"], each["value"]) for each in found] == [(5, "plain"), (5, None)]
    assert len({each["partition"] for each in found}) == 1


@pytest.mark.proves("A3", part="schemas")
@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"value_schema": {"schema": ORDER}, "records": [{"value": {"id": "x", "note": None}}]}, 422, ".id: expected"),
        ({"value_schema": {"id": 99_999}, "records": [{"value": 1}]}, 404, "99999"),
        ({"value_schema": {"subject": "no-such"}, "records": [{"value": 1}]}, 404, "no-such"),
        ({"value_schema": {"schema": "{"}, "records": [{"value": 1}]}, 422, "Invalid schema"),
        ({"value_schema": {"id": 1, "schema": "x"}, "records": [{"value": 1}]}, 422, "only one of"),
        ({"records": [{"value": 1, "value_schema_id": 99_999}]}, 404, "99999"),
        ({"records": [{"value": 1, "key": 5}]}, 422, "A key is text"),
    ],
)  # fmt: skip
def test_schema_errors_store_nothing(gateway: Gateway, topic: str, body: Any, status: int, part: str) -> None:
    reply = gateway.post(f"/topics/{topic}/produce", body)
    assert (reply.status, part in reply.json["message"]) == (status, True), reply.body
    assert gateway.records(topic) == []


@pytest.mark.proves("A5", part="schemas")
def test_console_decodes_filters_and_sends_again(
    broker: Broker, gateway: Gateway, browser: Browser, topic: str
) -> None:
    values = [{"id": number, "note": None} for number in range(5)]
    produce(
        gateway, topic, value_schema={"schema": ORDER}, records=[{"value": each, "partition": 1} for each in values]
    )
    page = browser.read(topic, expression="value.id >= 3", direction="oldest", start="start")
    views = [each["value"] for each in page["records"]]
    assert [json.loads(each["text"])["id"] for each in views] == [3, 4]
    assert {(each["schema_type"], each["encoding"]) for each in views} == {("AVRO", "json")}
    again = {"text": '{"id": 9, "note": {"string": "x"}}', "schema_id": views[0]["schema_id"]}
    browser.post(f"/topics/{topic}/records", {"records": [{"value": again, "partition": 1}]})
    one = browser.get(f"/topics/{topic}/partitions/1/records/5")
    assert json.loads(one["value"]["text"]) == {"id": 9, "note": {"string": "x"}}
    wrong = {"text": '{"id": "x"}', "schema_id": views[0]["schema_id"]}
    assert browser.error("POST", f"/topics/{topic}/records", {"records": [{"value": wrong}]}) == (400, "invalid_value")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    codec = compile_codec(RegisteredSchema(1, AVRO, '"string"'))
    producer.produce(topic, frame(88_888, codec.encode("x")), partition=1)
    producer.produce(topic, frame(views[0]["schema_id"], b"\xff"), partition=1)
    assert producer.flush(20) == 0
    shown = browser.read(topic, direction="oldest", start="6")["records"]
    assert "88888" in shown[0]["value"]["schema_error"]
    assert "cut off" in shown[1]["value"]["schema_error"]


@pytest.mark.proves("A5", part="schemas")
def test_console_registers_compares_and_deletes_schemas(browser: Browser, topic: str) -> None:
    path = f"/schemas/subjects/{topic}-value"
    first = browser.post(f"{path}/versions", {"text": ORDER})
    assert first["version"] == 1
    bad = ORDER.replace('"long"', '"bytes"')
    checked = browser.post(f"{path}/check", {"text": bad})
    assert (checked["is_compatible"], "TYPE_MISMATCH" in checked["messages"][0]) == (False, True)
    assert browser.error("POST", f"{path}/versions", {"text": bad}) == (409, "registry_409")
    assert browser.post(f"{path}/versions", {"text": NEWER})["version"] == 2
    lines = browser.get(f"{path}/diff?before=1&after=2")["lines"]
    assert any(line.startswith("+") and "sku" in line for line in lines)
    assert browser.get(f"{path}/versions/1")["schema_id"] == first["schema_id"]
    browser.put(f"{path}/compatibility", {"compatibility": "FULL"})
    described = browser.get(path)
    assert (described["compatibility"], [each["version"] for each in described["versions"]]) == ("FULL", [1, 2])
    found = browser.get(f"/schemas/subjects?search={topic}")
    assert [(each["subject"], each["versions"]) for each in found["subjects"]] == [(f"{topic}-value", 2)]
    versions = browser.get(f"/schemas/ids/{first['schema_id']}")["versions"]
    assert {"subject": f"{topic}-value", "version": 1} in versions
    assert browser.error("DELETE", path, {"confirm": "other"}) == (400, "not_confirmed")
    browser.delete(path, {"confirm": f"{topic}-value"})
    assert all(each["is_deleted"] for each in browser.get(path)["versions"])
    browser.delete(f"{path}?permanent=true", {"confirm": f"{topic}-value"})
    assert browser.error("GET", path) == (404, "registry_40401")
