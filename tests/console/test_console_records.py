"""Records in the console: pages in both directions, filters, encodings, hostile bytes, live tail."""

import base64
import http.client
import json
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from moldau_dev.console import API, Browser, text

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\u202e\u0000\u001b[31m",
    "']};alert(1)//",
    '{"__proto__": {"x": 1}}',
    "{" * 500,
]


def put(browser: Browser, topic: str, *records: dict[str, Any]) -> list[dict[str, int]]:
    places: list[dict[str, int]] = browser.post(f"/topics/{topic}/records", {"records": list(records)})["records"]
    return places


def numbered(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"value": text(json.dumps({"number": each})), "timestamp": 1_000 + each, **fields} for each in range(count)]


def numbers(page: Any) -> list[int]:
    return [json.loads(each["value"]["text"])["number"] for each in page["records"]]


@pytest.mark.proves("A5", part="every record once")
@pytest.mark.parametrize("text_filter", ["", "number"])
@pytest.mark.parametrize(("direction", "start"), [("oldest", "start"), ("newest", "end")])
def test_pages_have_every_record_once_in_order_of_time(
    browser: Browser, topic: str, direction: str, start: str, text_filter: str
) -> None:
    """A filter that every record matches: more are found at once than fit into a page."""
    for partition in range(3):
        put(browser, topic, *numbered(1_000, partition=partition)[partition::3])
    page = browser.read(topic, direction=direction, start=start, limit=300, text=text_filter)
    found = numbers(page)
    while page["positions"]:
        page = browser.read(topic, direction=direction, positions=page["positions"], limit=300, text=text_filter)
        found += numbers(page)
    assert found == sorted(range(1_000), reverse=direction == "newest")
    assert page["left"] == 0


@pytest.mark.parametrize(
    ("start", "first"),
    [("start", 0), ("7", 7), ("-4", 16), ("@1005", 5), ("@1970-01-01T00:00:01.010Z", 10), ("end", None)],
)
def test_page_starts_at_a_position(browser: Browser, topic: str, start: str, first: int | None) -> None:
    put(browser, topic, *numbered(20, partition=1))
    page = browser.read(topic, direction="oldest", start=start, partitions=[1])
    assert numbers(page)[:1] == ([] if first is None else [first])


@pytest.mark.proves("A5", part="filters")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"text": 'NUMBER": 13}'}, [13]),
        ({"key": "odd", "text": '"number": 1}'}, [1]),
        ({"key": "odd", "expression": "value.number > 15"}, [17, 19]),
        ({"expression": "value.number in [3, 4] and not key == 'odd'"}, [4]),
        ({"expression": "contains(headers.trace, 'a-7')"}, [7]),
        ({"expression": "offset >= 18 or timestamp < 1001"}, [0, 18, 19]),
        ({"expression": "value.__class__"}, []),
        ({"expression": "value.missing == 1 or value.number == 'x'"}, []),
    ],
)
def test_filters_select_records(browser: Browser, topic: str, wanted: dict[str, str], expected: list[int]) -> None:
    records = numbered(20, partition=0)
    for number, each in enumerate(records):
        each["key"] = text("odd" if number % 2 else "even")
        each["headers"] = [{"name": "trace", "text": f"a-{number}"}]
    put(browser, topic, *records)
    page = browser.read(topic, direction="oldest", start="start", **wanted)
    assert numbers(page) == expected
    assert page["scanned"] == 20
    assert numbers(browser.read(topic, **wanted)) == expected[::-1]


@pytest.mark.proves("A5", part="filters")
@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "value.__class__()",
        "[each for each in value]",
        "lambda: 1",
        "9 ** 9 ** 9",
        "'a' * 999999999",
        "f'{value}'",
        "value[0:9]",
        "len()",
        "open('x')",
        "unknown == 1",
        "((",
        "not " * 240 + "1",
        "1 + 1",
    ],
)
def test_expression_outside_the_subset_is_rejected(browser: Browser, topic: str, expression: str) -> None:
    status, code = browser.error("POST", f"/topics/{topic}/read", {"expression": expression})
    assert (status, code) == (400, "invalid_expression")


def test_every_kind_of_bytes_is_shown_as_it_is(browser: Browser, topic: str) -> None:
    avro = bytes([0, 0, 0, 1, 2, 9, 9])
    kinds: list[tuple[dict[str, str], str, str | None]] = [
        ({}, "null", None),
        (text(""), "empty", ""),
        (text("plain ü"), "text", "plain ü"),
        (text('{"a": [1]}'), "json", '{"a": [1]}'),
        (text('{"a": '), "text", '{"a": '),
        ({"base64": base64.b64encode(avro).decode()}, "hex", avro.hex()),
        ({"base64": base64.b64encode(b"\xff\xfe").decode()}, "hex", "fffe"),
    ]
    put(browser, topic, *({"partition": 0, "value": payload, "key": payload} for payload, _, _ in kinds))
    page = browser.read(topic, direction="oldest", start="start")
    shown = [(each["value"]["encoding"], each["value"]["text"]) for each in page["records"]]
    assert shown == [(encoding, content) for _, encoding, content in kinds]
    assert page["records"][5]["value"]["schema_id"] == 258


def test_hostile_records_are_json_and_never_markup(browser: Browser, topic: str) -> None:
    for each in HOSTILE:
        put(browser, topic, {"key": text(each), "value": text(each), "headers": [{"name": each, "text": each}]})
    reply = browser.send("POST", f"{API}/topics/{topic}/read", {"limit": 100})
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert {each["headers"][0]["name"] for each in reply.json["records"]} == set(HOSTILE)


def test_long_value_is_cut_in_pages_and_whole_in_its_own_request(browser: Browser, topic: str) -> None:
    value = "ü" * 100_000
    (place,) = put(browser, topic, {"value": text(value)})
    (row,) = browser.read(topic)["records"]
    assert row["value"]["is_cut"]
    assert row["value"]["size"] == 200_000
    assert len(row["value"]["text"]) < 5_000
    path = f"/topics/{topic}/partitions/{place['partition']}/records/{place['offset']}"
    assert browser.get(path)["value"]["text"] == value
    reply = browser.send("GET", f"{API}{path}/value")
    assert reply.body == value.encode()
    assert reply.headers["content-type"] == "application/octet-stream"
    assert browser.error("GET", f"/topics/{topic}/partitions/{place['partition']}/records/99") == (404, "no_record")
    assert browser.error("GET", f"/topics/{topic}/partitions/99/records/0")[0] == 404


@pytest.mark.proves("A5", part="every record once")
def test_large_records_are_read_backwards_without_a_gap(browser: Browser, topic: str) -> None:
    """A window that exceeds its budget of bytes is read again in smaller parts."""
    value = "x" * 900_000
    for number in range(24):
        put(browser, topic, {"partition": 0, "value": text(f"{number} {value}")})
    page = browser.read(topic, limit=50, partitions=[0])
    found = [int(each["value"]["text"].split()[0]) for each in page["records"]]
    while page["positions"]:
        page = browser.read(topic, limit=50, positions=page["positions"])
        found += [int(each["value"]["text"].split()[0]) for each in page["records"]]
    assert found == list(range(23, -1, -1))


def test_produced_record_without_a_partition_goes_where_its_key_belongs(browser: Browser, topic: str) -> None:
    places = put(browser, topic, *({"key": text("same"), "value": text(str(each))} for each in range(5)))
    assert len({each["partition"] for each in places}) == 1
    assert [each["offset"] for each in places] == list(range(5))
    bad = {"records": [{"partition": 3, "value": text("x")}]}
    assert browser.error("POST", f"/topics/{topic}/records", bad) == (404, "unknown_topic_or_partition")
    bad = {"records": [{"value": {"base64": "*"}}]}
    assert browser.error("POST", f"/topics/{topic}/records", bad) == (400, "invalid_base64")


@pytest.mark.proves("A5", part="live tail")
def test_live_tail_shows_new_records_that_match(browser: Browser, topic: str) -> None:
    put(browser, topic, {"value": text("before")})
    connection = http.client.HTTPConnection(urlsplit(browser.url).netloc, timeout=30)
    connection.request("GET", f"{API}/topics/{topic}/tail?text=wanted")
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.readline() == b"event: started\n"
    producer = threading.Thread(
        target=put, args=(browser, topic, {"value": text("other")}, {"value": text("wanted 1")}), daemon=True
    )
    producer.start()
    events = iter(response.readline, b"")
    assert next(each for each in events if each.startswith(b"event: ")) == b"event: records\n"
    content = json.loads(next(events).removeprefix(b"data: "))
    assert [each["value"]["text"] for each in content["records"]] == ["wanted 1"]
    producer.join()
    connection.close()


def test_number_of_live_tails_is_bounded(browser: Browser, topic: str) -> None:
    connections = []
    for _ in range(10):
        connection = http.client.HTTPConnection(urlsplit(browser.url).netloc, timeout=30)
        connection.request("GET", f"{API}/topics/{topic}/tail")
        connection.getresponse().readline()
        connections.append(connection)
    assert browser.error("GET", f"/topics/{topic}/tail") == (429, "too_many_tails")
    for connection in connections:
        connection.close()
