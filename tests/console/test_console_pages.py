"""The API of each page of the console, on a real broker."""

import json
from collections.abc import Iterator

import pytest

from moldau.testing import Broker
from moldau_dev.console import API, Browser, serve, text

PARTITIONS = 3


def produce(browser: Browser, topic: str, values: list[str], partition: int | None = None) -> list[dict[str, int]]:
    records: list[dict[str, object]] = [
        {"value": text(each), "key": text(f"key-{number}")} for number, each in enumerate(values)
    ]
    if partition is not None:
        records = [{**each, "partition": partition} for each in records]
    found: list[dict[str, int]] = browser.post(f"/topics/{topic}/records", {"records": records})["records"]
    return found


def test_overview_shows_health_and_totals(browser: Browser, topic: str) -> None:
    produce(browser, topic, ["one", "two"])
    overview = browser.get("/overview")
    assert overview["is_healthy"], overview["problems"]
    assert len(overview["brokers"]) == 1
    assert browser.get("/totals")["topics"][topic] == 2
    (broker,) = browser.get("/brokers")["brokers"]
    assert broker["leaders"] >= PARTITIONS
    assert broker["size_bytes"] > 0
    (log_dir,) = browser.get(f"/brokers/{broker['id']}/log-dirs")["log_dirs"]
    assert topic in {each["name"] for each in log_dir["topics"]}
    assert browser.get("/quorum")["leader"] == broker["id"]
    assert browser.get("/reassignments") == {"reassignments": [], "total": 0}


@pytest.mark.proves("A5", part="changes are confirmed")
def test_topics_are_created_listed_grown_emptied_and_deleted(browser: Browser, topic: str) -> None:
    produce(browser, topic, ["x"] * 10, partition=1)
    listed = browser.get(f"/topics?search={topic.upper()}&sort=-partitions")
    assert listed["total"] == 1
    (row,) = listed["topics"]
    assert (row["name"], row["partitions"], row["records"]) == (topic, PARTITIONS, 10)
    assert row["configs"]["cleanup.policy"] == "delete"
    browser.put(f"/topics/{topic}/partitions", {"partitions": 4})
    described = browser.get(f"/topics/{topic}?size=2&page=1")
    assert (described["total"], len(described["partition_list"])) == (4, 2)
    assert described["skew"] == 4.0
    assert described["partition_list"][1]["end"] == 10
    assert browser.error("POST", f"/topics/{topic}/empty", {"confirm": "other"}) == (400, "not_confirmed")
    browser.post(f"/topics/{topic}/empty", {"confirm": topic})
    assert browser.get(f"/topics/{topic}")["records"] == 0
    assert browser.error("DELETE", f"/topics/{topic}", {"confirm": ""}) == (400, "not_confirmed")
    browser.delete(f"/topics/{topic}", {"confirm": topic})
    assert browser.error("GET", f"/topics/{topic}") == (404, "unknown_topic_or_partition")


def test_topic_configs_are_validated_changed_and_reset(browser: Browser, topic: str) -> None:
    path = f"/configs/topic/{topic}"
    bad = {"values": {"retention.ms": "soon"}, "validate_only": True}
    assert browser.error("PATCH", path, bad) == (400, "invalid_config")
    browser.patch(path, {"values": {"retention.ms": "1000"}, "validate_only": True})
    assert retention(browser, path)["is_default"]
    browser.patch(path, {"values": {"retention.ms": "1000"}})
    assert retention(browser, path)["value"] == "1000"
    browser.patch(path, {"removed": ["retention.ms"]})
    assert retention(browser, path)["is_default"]
    assert browser.get("/configs/broker/1")["configs"]


def retention(browser: Browser, path: str) -> dict[str, object]:
    found: dict[str, object] = next(each for each in browser.get(path)["configs"] if each["name"] == "retention.ms")
    return found


@pytest.mark.proves("A5", part="changes are confirmed")
def test_groups_show_lag_and_reset_offsets(browser: Browser, broker: Broker, topic: str) -> None:
    from confluent_kafka import Consumer

    produce(browser, topic, ["x"] * 10, partition=0)
    group = f"group of {topic}"
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])
    messages = consumer.consume(4, timeout=20)
    consumer.commit(message=messages[-1], asynchronous=False)
    described = browser.get(f"/groups/{group}")
    assert (described["lag"], len(described["members"])) == (6, 1)
    (row,) = browser.get(f"/groups?search={topic}")["groups"]
    assert (row["lag"], row["members"], row["topics"]) == (6, 1, [topic])
    assert browser.get(f"/topics/{topic}/groups")["groups"][0]["lag"] == 6
    reset = {"to": "start", "topics": {topic: [0]}, "dry_run": False, "confirm": group}
    assert browser.error("POST", f"/groups/{group}/offsets", reset)[0] >= 400  # it has a member
    consumer.close()
    plan = browser.post(f"/groups/{group}/offsets", {"to": "-3", "topics": {topic: [0]}})
    assert plan == {
        "plan": [{"topic": topic, "partition": 0, "committed": 4, "target": 7}],
        "is_committed": False,
    }
    assert browser.get(f"/groups/{group}")["lag"] == 6
    assert browser.error("POST", f"/groups/{group}/offsets", {**reset, "confirm": "x"}) == (400, "not_confirmed")
    browser.post(f"/groups/{group}/offsets", {**reset, "to": None, "shift": 5})
    assert browser.get(f"/groups/{group}")["lag"] == 1
    browser.delete(f"/groups/{group}", {"confirm": group})
    assert browser.error("GET", f"/groups/{group}") == (404, "group_id_not_found")


def test_open_transaction_is_shown_and_terminated(browser: Browser, broker: Broker, topic: str) -> None:
    from confluent_kafka import Producer

    identity = f"tx/{topic}"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": identity})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(20) == 0
    (row,) = browser.get(f"/transactions?search={topic}&state=Ongoing")["transactions"]
    assert row["transactional_id"] == identity
    assert browser.get(f"/transactions/{identity}")["partitions"] == [f"{topic}-0"]
    assert browser.read(topic)["records"] == []
    assert browser.read(topic, with_uncommitted=True)["records"][0]["value"]["text"] == "open"
    browser.delete(f"/transactions/{identity}", {"confirm": identity})
    assert browser.get(f"/transactions?search={topic}&state=Ongoing")["transactions"] == []
    assert browser.get("/hanging-transactions")["hanging"] == []


def test_quotas_are_set_and_removed(browser: Browser) -> None:
    entity = {"user": "ann", "client-id": None}
    browser.patch("/quotas", {"entity": entity, "values": {"producer_byte_rate": 1000}})
    assert {"entity": entity, "values": {"producer_byte_rate": 1000.0}} in browser.get("/quotas?search=ann")["quotas"]
    browser.patch("/quotas", {"entity": entity, "values": {"producer_byte_rate": None}})
    assert browser.get("/quotas?search=ann")["total"] == 0


def test_users_are_created_and_deleted(browser: Browser) -> None:
    browser.put("/users/ben", {"password": "secret"})
    assert {"name": "ben", "mechanisms": {"SCRAM-SHA-512": 8192}} in browser.get("/users")["users"]
    browser.delete("/users/ben", {"confirm": "ben"})
    assert browser.error("DELETE", "/users/ben", {"confirm": "ben"}) == (404, "resource_not_found")


def test_acls_without_an_authorizer_are_an_error_that_says_so(browser: Browser) -> None:
    assert browser.error("GET", "/acls") == (403, "security_disabled")


@pytest.fixture(scope="module")
def read_only(broker: Broker) -> Iterator[Browser]:
    with serve(broker.bootstrap_servers, "--read-only") as url:
        yield Browser(url).open()


@pytest.mark.proves("A5", part="read-only")
def test_read_only_console_reads_and_rejects_every_change(read_only: Browser, browser: Browser, topic: str) -> None:
    produce(browser, topic, ["seen"])
    assert read_only.read(topic)["records"][0]["value"]["text"] == "seen"
    changes = [
        ("POST", "/topics", {"name": "x"}),
        ("DELETE", f"/topics/{topic}", {"confirm": topic}),
        ("PUT", f"/topics/{topic}/partitions", {"partitions": 9}),
        ("POST", f"/topics/{topic}/empty", {"confirm": topic}),
        ("POST", f"/topics/{topic}/records", {"records": [{"value": text("x")}]}),
        ("PATCH", f"/configs/topic/{topic}", {"values": {"retention.ms": "1"}}),
        ("PUT", "/brokers/1/cordon", {"is_cordoned": True}),
        ("POST", "/groups/g/offsets", {"to": "start", "topics": {topic: None}, "dry_run": False, "confirm": "g"}),
        ("DELETE", "/groups/g", {"confirm": "g"}),
        ("DELETE", "/transactions/t", {"confirm": "t"}),
        ("POST", "/hanging-transactions/abort", {"topic": topic, "partition": 0, "start_offset": 0, "confirm": ""}),
        ("POST", "/acls", {"kind": "topic", "name": "x", "principal": "User:x", "operation": "read"}),
        ("POST", "/acls/delete", {"kind": "topic", "name": "x", "principal": "User:x", "operation": "read"}),
        ("PUT", "/users/x", {"password": "x"}),
        ("DELETE", "/users/x", {"confirm": "x"}),
        ("PATCH", "/quotas", {"entity": {"user": "x"}, "values": {"producer_byte_rate": 1}}),
        ("PUT", "/schemas/compatibility", {"compatibility": "NONE"}),
        ("PUT", "/schemas/subjects/x/compatibility", {"compatibility": "NONE"}),
        ("POST", "/schemas/subjects/x/versions", {"text": '"long"'}),
        ("DELETE", "/schemas/subjects/x/versions/1", {"confirm": "x 1"}),
        ("DELETE", "/schemas/subjects/x", {"confirm": "x"}),
    ]
    assert {read_only.error(*change) for change in changes} == {(403, "read_only")}
    assert len(changes) == len(changing_routes())


def changing_routes() -> list[tuple[str, str]]:
    """The routes of the application that need the permission to change something."""
    from moldau.console.access import _editor
    from moldau.console.app import ROUTES

    def needs_editor(dependant: object) -> bool:
        children = getattr(dependant, "dependencies", [])
        return getattr(dependant, "call", None) is _editor or any(map(needs_editor, children))

    return [
        (method, route.path)
        for module in ROUTES
        for route in module.router.routes
        if needs_editor(getattr(route, "dependant", None))
        for method in sorted(getattr(route, "methods", None) or ())
    ]


def test_every_changing_method_needs_an_editor() -> None:
    from moldau.console.app import ROUTES

    read_only = [("POST", "/topics/{topic}/read"), ("POST", "/schemas/subjects/{subject:path}/check")]
    exempt = {("POST", "/session"), ("DELETE", "/session"), *read_only}
    routes = {
        (method, getattr(route, "path", ""))
        for module in ROUTES
        for route in module.router.routes
        for method in getattr(route, "methods", None) or ()
    }
    assert {each for each in routes if each[0] != "GET"} - exempt == set(changing_routes())


@pytest.mark.proves("A5", part="downloads")
def test_download_has_the_records_as_lines_and_as_a_table(browser: Browser, topic: str) -> None:
    produce(browser, topic, ["=1+1", "two"], partition=2)
    query = "direction=oldest&start=start"
    lines = browser.send("GET", f"{API}/topics/{topic}/download?{query}")
    assert [json.loads(line)["value"] for line in lines.body.splitlines()] == ["=1+1", "two"]
    assert lines.headers["content-disposition"] == f'attachment; filename="{topic}.ndjson"'
    table = browser.send("GET", f"{API}/topics/{topic}/download?{query}&format=csv&records=1")
    header, row = table.body.decode().splitlines()
    assert header == "partition,offset,timestamp,key,value,headers"
    assert ",'=1+1," in row
