"""Records through the gateway: produced, read, followed, and produced once."""

import base64
import http.client
import json
import shutil
import subprocess
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer

from moldau.testing import Broker
from moldau_dev.gateway import Gateway

ORDER = """{
  "records": [
    {
      "key": "user_897123",
      "value": {
        "order_id": "ord_9082348",
        "amount": 128.50,
        "items": ["sku_1", "sku_2"]
      }
    }
  ]
}"""


def consume(broker: Broker, topic: str, count: int) -> list[Any]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        return consumer.consume(count, timeout=20)
    finally:
        consumer.close()


@pytest.mark.proves("A3", part="produce and read")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_documented_request_is_produced_by_curl(broker: Broker, gateway: Gateway, topic: str) -> None:
    url = f"{gateway.url}/v1/topics/{topic}/produce"
    command = ["curl", "-sS", "--fail", "-H", "Content-Type: application/json", "-d", ORDER, url]
    reply = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout)
    (message,) = consume(broker, topic, 1)
    assert reply == {"records": [{"partition": message.partition(), "offset": 0}]}
    assert message.key() == b"user_897123"
    assert json.loads(message.value()) == json.loads(ORDER)["records"][0]["value"]


@pytest.mark.proves("A3", part="produce and read")
@pytest.mark.parametrize("acks", ["all", "1"])
def test_records_are_read_as_they_were_produced(broker: Broker, gateway: Gateway, topic: str, acks: str) -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    records: list[dict[str, Any]] = [
        {"key": "a", "value": {"ü": [1, 2.5, None]}, "headers": [{"name": "h", "value": "x"}]},
        {"key": "a", "value": "text"},
        {"key": None, "value": None, "headers": [{"name": "n", "value": None}, {"name": "b", "value_base64": encoded}]},
        {"key_base64": encoded, "value_base64": encoded},
        {"key": "a", "value_text": "null"},
        {"key": "a", "value_text": "1e999"},
        {"key": "a", "value_text": "not json"},
    ]
    sent = [{**each, "partition": 1, "timestamp": 1_000 + number} for number, each in enumerate(records)]
    reply = gateway.post(f"/topics/{topic}/produce", {"records": sent, "acks": acks, "compression": "lz4"})
    assert reply.json == {"records": [{"partition": 1, "offset": offset} for offset in range(7)]}
    found = gateway.records(topic)
    assert [each.pop("offset") for each in found] == list(range(7))
    assert found == [{"headers": [], **each} for each in sent]
    values = [message.value() for message in consume(broker, topic, 7)]
    assert values == ['{"ü":[1,2.5,null]}'.encode(), b'"text"', None, b"\xff\x00", b"null", b"1e999", b"not json"]


def test_acks_0_has_no_offsets(gateway: Gateway, topic: str) -> None:
    reply = gateway.post(f"/topics/{topic}/produce", {"records": [{"value": 1, "partition": 2}], "acks": "0"})
    assert reply.json == {"records": [{"partition": 2, "offset": None}]}


@pytest.mark.proves("A3", part="produce and read")
def test_pages_have_every_record_once(gateway: Gateway, topic: str) -> None:
    records = [{"key": f"k{number % 5}", "value": number, "timestamp": number + 1} for number in range(50)]
    gateway.post(f"/topics/{topic}/produce", {"records": records})
    found, start = [], "start"
    while start:
        page = gateway.get(f"/topics/{topic}/records?limit=7&from={start}").json
        assert len(page["records"]) <= 7
        found += [each["value"] for each in page["records"]]
        start = page["next"]
    assert sorted(found) == list(range(50))
    of_key = gateway.records(topic, "?key=k3")
    assert [each["value"] for each in of_key] == list(range(3, 50, 5))
    between = gateway.records(topic, "?from=@11&until=@21")
    assert sorted(each["value"] for each in between) == list(range(10, 20))
    lines = gateway.get(f"/topics/{topic}/records?limit=42", Accept="application/x-ndjson").body.splitlines()
    assert len({json.loads(line)["value"] for line in lines}) == 42


@pytest.mark.proves("A3", part="produce and read")
def test_record_with_a_key_goes_to_the_partition_of_kafkas_producers(
    broker: Broker, gateway: Gateway, topic: str
) -> None:
    keys = [f"key-{number}" for number in range(20)]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"1", key)
    assert producer.flush(20) == 0
    gateway.post(f"/topics/{topic}/produce", {"records": [{"key": key, "value": 2} for key in keys]})
    places = {(each["key"], each["partition"]) for each in gateway.records(topic)}
    assert len(places) == len(keys)


class Events:
    """An open live tail."""

    def __init__(self, gateway: Gateway, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", f"/v1{path}", headers={"Accept": "text/event-stream", **sent})
        self.response = self._connection.getresponse()

    def next(self) -> dict[str, str]:
        """Return the fields of the next event."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, fields_text = line.partition(": ")
            fields[name] = fields_text
        return fields

    def values(self, count: int) -> tuple[list[Any], str]:
        """Return values of records, and the last position."""
        values: list[Any] = []
        position = ""
        while len(values) < count or not position:
            event = self.next()
            assert event["event"] == "record", event
            values.append(json.loads(event["data"])["value"])
            position = event.get("id", "")
        return values, position

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@pytest.mark.proves("A3", part="live tail")
def test_live_tail_goes_on_where_its_reader_left(gateway: Gateway, topic: str) -> None:
    path = f"/topics/{topic}/produce"
    gateway.post(path, {"records": [{"value": "before"}]})
    tail = Events(gateway, f"/topics/{topic}/records")
    assert tail.next()["event"] == "started"
    gateway.post(path, {"records": [{"value": number, "partition": number % 3} for number in range(9)]})
    values, position = tail.values(9)
    tail.close()
    assert sorted(values) == list(range(9))
    gateway.post(path, {"records": [{"key": "x", "value": "missed"}, {"key": "y", "value": "other"}]})
    again = Events(gateway, f"/topics/{topic}/records?key=x", Last_Event_ID=position)
    assert again.next()["event"] == "started"
    assert again.values(1)[0] == ["missed"]
    again.close()


@pytest.mark.proves("A3", part="live tail")
def test_live_tail_leaves_other_requests_alone(gateway: Gateway, topic: str) -> None:
    """Ten idle tails wait for records in fetches of their own clients."""
    tails = [Events(gateway, f"/topics/{topic}/records") for _ in range(10)]
    assert [each.next()["event"] for each in tails] == ["started"] * 10
    assert gateway.post(f"/topics/{topic}/produce", {"records": [{"value": 1}]}).status == 200
    assert [each.values(1)[0] for each in tails] == [[1]] * 10
    for each in tails:
        each.close()


@pytest.mark.proves("A3", part="idempotency keys")
def test_repeated_idempotency_key_is_produced_once(gateway: Gateway, topic: str) -> None:
    path, body = f"/topics/{topic}/produce", {"records": [{"value": 1}, {"value": 2, "partition": 0}]}
    replies: list[Any] = []

    def send() -> None:
        replies.append(gateway.post(path, body, Idempotency_Key="k-1"))

    senders = [threading.Thread(target=send) for _ in range(8)]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    assert {(each.status, each.body) for each in replies} == {(200, replies[0].body)}
    assert sum("idempotent-replayed" in each.headers for each in replies) == 7
    assert len(gateway.records(topic)) == 2
    reused = gateway.post(path, {"records": [{"value": 3}]}, Idempotency_Key="k-1")
    assert (reused.status, reused.json["error"]) == (422, "idempotency_key_reused")
    assert gateway.post(path, body, Idempotency_Key="k-2").status == 200
    assert len(gateway.records(topic)) == 4


@pytest.mark.proves("A3", part="idempotency keys")
def test_request_that_stored_nothing_can_be_repeated_with_its_key(gateway: Gateway) -> None:
    body = {"records": [{"value": 1}]}
    assert gateway.post("/topics/created-later/produce", body, Idempotency_Key="k").status == 404
    assert gateway.post("/topics", {"name": "created-later", "partitions": 1}).status == 201
    assert gateway.post("/topics/created-later/produce", body, Idempotency_Key="k").status == 200
    assert len(gateway.records("created-later")) == 1


def test_batch_of_one_partition_fails_without_the_others(gateway: Gateway) -> None:
    topic = {"name": "small-messages", "partitions": 2, "configs": {"max.message.bytes": "1000"}}
    assert gateway.post("/topics", topic).status == 201
    records = [{"value": "x", "partition": 0}, {"value": "x" * 2_000, "partition": 1}]
    reply = gateway.post("/topics/small-messages/produce", {"records": records})
    assert (reply.status, reply.json["error"]) == (413, "message_too_large")
    assert reply.json["records"][0] == {"partition": 0, "offset": 0}
    assert reply.json["records"][1]["error"] == "message_too_large"
    assert [each["value"] for each in gateway.records("small-messages")] == ["x"]


@pytest.mark.proves("A3", part="errors")
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"records": []}, "records"),
        ({"records": [{"key": "a"}]}, "value"),
        ({"records": [{"vaule": 1}]}, "vaule"),
        ({"records": [{"value": 1, "value_text": "1"}]}, "only one of"),
        ({"records": [{"value_base64": "?"}]}, "base64"),
        ({"records": [{"value": 1, "partition": 3}]}, "has no partition 3"),
        ({"records": [{"value": 1}], "acks": "2"}, "acks"),
        (b'{"records": [{"value": NaN}]}', "number"),
        (b'{"records": [{"value": [1e999]}]}', "number"),
        (b'{"records": [', "JSON"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_invalid_records_are_rejected_with_a_reason(gateway: Gateway, topic: str, body: Any, part: str) -> None:
    reply = gateway.post(f"/topics/{topic}/produce", body)
    assert reply.status in (400, 404, 422)
    assert part in reply.json["message"]
    assert gateway.records(topic) == []


@pytest.mark.proves("A3", part="errors")
def test_errors_have_one_shape(gateway: Gateway, topic: str) -> None:
    record = {"records": [{"value": 1}]}
    path = f"/topics/{topic}/records"
    assert gateway.error("POST", "/topics/no-such-topic/produce", record) == (404, "unknown_topic_or_partition")
    assert gateway.error("GET", "/topics/no-such-topic/records") == (404, "unknown_topic_or_partition")
    assert gateway.error("GET", f"{path}?from=yesterday") == (400, "invalid_position")
    assert gateway.error("GET", f"{path}?from=0:x") == (400, "invalid_position")
    assert gateway.error("GET", f"{path}?limit=0") == (422, "invalid_request")
    assert gateway.error("GET", f"{path}?limit=5000") == (400, "invalid_request")
    assert gateway.error("GET", f"{path}?format=sse&until=end") == (400, "invalid_request")
    assert gateway.error("POST", "/topics", {"name": topic}) == (409, "topic_already_exists")
    assert gateway.error("GET", "/no-such-page") == (404, "http_404")
    large = {"records": [{"value": "x" * (4 << 20)}]}
    assert gateway.error("POST", f"/topics/{topic}/produce", large) == (413, "body_too_large")
