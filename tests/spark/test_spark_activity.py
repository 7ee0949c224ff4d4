"""The activity pipeline: what is wrong is put aside with its reason, what came twice counts once, figures add up."""

import json
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from spark_scene import reading

from moldau.pipelines.activity import EVENTS, Activity, counts, load, sessions, sorted_out
from moldau.pipelines.ejecting import SETTINGS
from moldau.pipelines.flow import SqlStep
from moldau.pipelines.folders import RunFolder, State, new_run
from moldau.pipelines.reporting import make_report
from moldau.pipelines.running import Conditions
from moldau.testing.broker import Broker

START_MS = 1_767_225_600_000
BAD = {
    b"no json": "not a JSON event",
    b'{"event_id": "b1", "kind": "view", "at": "1767225600000"}': "user is missing",
    b'{"user": "u", "kind": "view", "at": "1767225600000"}': "event_id is missing",
    b'{"event_id": "b2", "user": "u", "kind": "dance", "at": "1767225600000"}': "kind is unknown: dance",
    b'{"event_id": "b3", "user": "u", "kind": "view", "at": "noon"}': "at is no time: noon",
    b'{"event_id": "b4", "user": "u", "kind": "view", "at": "99999999999999"}': "at is in the future: 99999999999999",
}


def event(number: int, user: str, at_ms: int) -> bytes:
    kind = "purchase" if number % 10 == 0 else "view"
    return json.dumps(
        {"event_id": f"e{number}", "user": user, "kind": kind, "page": f"/{number % 3}", "at": str(at_ms)}
    ).encode()


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    """A fresh topic for records of long ago, which by default might be deleted at any moment."""
    return moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=2, **{"retention.ms": "-1"})


def fill(broker: Broker, topic: str) -> None:
    """120 events of which every fourth is of one user, all of them twice, and six that are none; 2 minutes in all."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for again in (0, 1):
        for number in range(120):
            at_ms = START_MS + number * 1000
            user = "hot" if number % 4 == 0 else f"u{number % 7}"
            partition = 0 if user == "hot" else 1
            producer.produce(topic, event(number, user, at_ms), user, partition, timestamp=at_ms + again)
    for value in BAD:
        producer.produce(topic, value, b"k", partition=1, timestamp=START_MS, headers=[("h", b"1")])
    assert producer.flush(30) == 0


def rows(spark: Any, broker: Broker, topic: str) -> list[Any]:
    options = {"kafka__isolation__level": "read_committed", "includeHeaders": "true"}
    return list(reading(spark.read, broker, topic, **options).collect())


def values(spark: Any, broker: Broker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(bytes(row["value"])) for row in rows(spark, broker, topic)]


def raw(spark: Any, values: list[bytes | None]) -> Any:
    """Rows as the source gives them, written at the start of the hour."""
    written = datetime.fromtimestamp(START_MS / 1000, UTC)
    rows = [(b"k", value, "raw", 1, offset, written, None) for offset, value in enumerate(values)]
    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>"
    )
    return spark.createDataFrame(rows, schema)


def through(frame: Any, *steps: Any) -> Any:
    for step in steps:
        frame = step.apply(frame)
    return frame


@pytest.mark.proves("D3")
def test_what_is_no_event_is_told_apart_with_its_reason(spark: Any) -> None:
    good = [event(number, "u", START_MS + number) for number in range(3)]
    frame = through(raw(spark, [*good, None, *BAD]), *Activity.checking(), SqlStep(sorted_out("out")))
    found = frame.collect()
    assert [row["topic"] for row in found] == ["out.events"] * 3 + ["out.dead-letters"] * (1 + len(BAD))
    told = [{each["key"]: bytes(each["value"]).decode() for each in row["headers"] or ()} for row in found]
    assert [each.get("moldau.reason") for each in told] == [None, None, None, "no value", *BAD.values()]
    assert told[4] == {
        "moldau.reason": "not a JSON event",
        "moldau.topic": "raw",
        "moldau.partition": "1",
        "moldau.offset": "4",
    }
    assert [row["value"] and bytes(row["value"]) for row in found][3:] == [None, *BAD]
    first = json.loads(bytes(found[0]["value"]))
    assert (first["event_id"], first["partition"], first["offset"]) == ("e0", 1, 0)
    assert bytes(found[0]["key"]) == b"u"


@pytest.mark.proves("D3", "T3")
def test_events_are_counted_by_window_session_and_load(spark: Any) -> None:
    times_s = [0, 10, 59, 60, 61, 4000, 4030]
    values: list[bytes | None] = [event(at, "u", START_MS + at * 1000) for at in times_s]
    events = through(raw(spark, values), *Activity.checking(), SqlStep(sorted_out("out")), SqlStep(EVENTS))
    counted = through(events, SqlStep(counts("1 minute"))).collect()
    by_window: Counter[str] = Counter()
    for row in counted:
        by_window[row["start"]] += row["events"]
    assert by_window == {
        "2026-01-01T00:00:00Z": 3,
        "2026-01-01T00:01:00Z": 2,
        "2026-01-01T01:06:00Z": 1,
        "2026-01-01T01:07:00Z": 1,
    }
    visits = through(events, SqlStep(sessions("30 minutes"))).orderBy("start").collect()
    assert [(row["user"], row["seconds"], row["events"]) for row in visits] == [("u", 61, 5), ("u", 30, 2)]
    loads = through(events, SqlStep(load("1 hour"))).collect()
    assert {(row["what"], row["name"], row["records"]) for row in loads} == {
        ("key", "u", 5),
        ("partition", "1", 5),
        ("key", "u", 2),
        ("partition", "1", 2),
    }


@pytest.mark.proves("D3", "T3")
def test_raw_events_become_results_each_once(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    fill(moldau_broker, topic)
    job = Activity(
        name=f"a-{topic}",
        bootstrap_servers=moldau_broker.bootstrap_servers,
        topic=topic,
        out=f"{topic}.out",
        lake=str(tmp_path / "lake"),
        lateness="5 minutes",
        rows_per_batch_max=100,
    )
    with moldau_broker.client() as client:
        job.create_topics(client, 2)
        job.create_topics(client, 2)
    folder = RunFolder(tmp_path, job.name)
    conditions = Conditions(folder=folder, master="local[2]", once=True)
    job.run(conditions, new_run("activity", {}, "local[2]"), tmp_path / "report.html")
    assert folder.state is State.DONE

    events = values(spark, moldau_broker, f"{job.out}.events")
    assert sorted(each["event_id"] for each in events) == sorted(f"e{number}" for number in range(120))
    letters = rows(spark, moldau_broker, f"{job.out}.dead-letters")
    told = {
        bytes(row["value"]): {each["key"]: bytes(each["value"]).decode() for each in row["headers"]} for row in letters
    }
    assert {value: headers["moldau.reason"] for value, headers in told.items()} == BAD
    assert {(each["h"], each["moldau.topic"], each["moldau.partition"]) for each in told.values()} == {
        ("1", topic, "1")
    }

    found = make_report(spark, job, "now")
    assert (found.events, found.users) == (120, 8)
    assert (len(found.times), found.step, found.by_time) == (120, "second", [1] * 120)
    assert {each.name: each.count for each in found.by_kind} == {"view": 108, "purchase": 12}
    assert found.hot_keys[0].name == "hot"
    assert [(each.name, each.count) for each in found.partitions] == [("0", 30), ("1", 90)]
    assert (sum(each.count for each in found.dead_letters), found.refused) == (len(BAD), len(BAD))
    assert found.sessions == 8
    assert "Activity of" in (tmp_path / "report.html").read_text()

    # Events of a later hour, in two batches, close the windows and sessions before them.
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    for number in (1000, 1001):
        later_ms = START_MS + 3_600_000 + number
        producer.produce(topic, event(number, "late", later_ms), "late", 1, timestamp=later_ms)
    assert producer.flush(30) == 0
    replace(job, rows_per_batch_max=1).run(conditions, new_run("activity", {}, "local[2]"), tmp_path / "report.html")
    closed: Counter[str] = Counter()
    for each in values(spark, moldau_broker, f"{job.out}.counts"):
        closed[each["start"]] += each["events"]
    assert closed == {"2026-01-01T00:00:00Z": 60, "2026-01-01T00:01:00Z": 60}
    visits = values(spark, moldau_broker, f"{job.out}.sessions")
    assert sum(each["events"] for each in visits) == 120
    assert {each["user"] for each in visits} == {"hot", *(f"u{number}" for number in range(7))}
    loads = values(spark, moldau_broker, f"{job.out}.load")
    assert sum(each["records"] for each in loads if (each["what"], each["name"]) == ("key", "hot")) == 30


def made(topic: str, broker: Broker, folder: Path, **changes: Any) -> Activity:
    job = Activity(
        name=f"a-{topic}",
        bootstrap_servers=broker.bootstrap_servers,
        topic=topic,
        out=f"{topic}.out",
        lake=str(folder / "lake"),
        lateness="5 minutes",
        rows_per_batch_max=100,
    )
    return replace(job, **changes)


@pytest.mark.proves("D3")
def test_the_ejected_pipeline_does_the_same_by_itself(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    fill(moldau_broker, topic)
    job = made(topic, moldau_broker, tmp_path)
    script = job.script(master="local[2]", checkpoint=str(tmp_path / "checkpoint"), once=True)
    exec(compile(script, "ejected.py", "exec"), {"__name__": "__main__"})
    ids = sorted(each["event_id"] for each in values(spark, moldau_broker, f"{job.out}.events"))
    assert ids == sorted(f"e{number}" for number in range(120))
    assert len(rows(spark, moldau_broker, f"{job.out}.dead-letters")) == len(BAD)
    assert make_report(spark, job, "now").events == 120
    assert {name for name in SETTINGS if spark.conf.get(name) != SETTINGS[name]} == set()


def test_a_report_of_an_empty_topic_is_written_too(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    del spark
    job = made(topic, moldau_broker, tmp_path)
    with moldau_broker.client() as client:
        job.create_topics(client, 1)
    conditions = Conditions(folder=RunFolder(tmp_path, job.name), master="local[2]", once=True)
    job.run(conditions, new_run("activity", {}, "local[2]"), tmp_path / "report.html")
    assert "None." in (tmp_path / "report.html").read_text()


def test_events_that_come_too_late_are_left_out_and_counted(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    job = made(topic, moldau_broker, tmp_path, rows_per_batch_max=1)
    with moldau_broker.client() as client:
        job.create_topics(client, 1)
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    # What is late is decided by what the batch before the last has seen: each event is a batch here.
    for number, at_s in enumerate([0, 3600, 3601, 1, 3602]):
        at_ms = START_MS + at_s * 1000
        producer.produce(topic, event(number, "u", at_ms), "u", 0, timestamp=at_ms)
        assert producer.flush(30) == 0
    folder = RunFolder(tmp_path, job.name)
    conditions = Conditions(folder=folder, master="local[2]", once=True)
    job.run(conditions, new_run("activity", {}, "local[2]"), tmp_path / "report.html")
    ids = sorted(each["event_id"] for each in values(spark, moldau_broker, f"{job.out}.events"))
    assert ids == ["e0", "e1", "e2", "e4"]
    assert [each.part for each in folder.parts] == ["clean", "counts", "sessions", "load", "lake"]
    assert {each.part: each.rows_total for each in folder.parts}["clean"] == 5
    assert folder.parts[0].late_total == 1
    assert "<b>1</b>too late, left out" in (tmp_path / "report.html").read_text()
