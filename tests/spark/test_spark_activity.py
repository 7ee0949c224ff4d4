"""The activity pipeline: dead letters with reasons, deduplication, and aggregates."""

import json
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from activity_scene import BAD, PARTITIONS, START_MS, event, fill, ids_of, send

from moldau.pipelines.activity import EVENTS, Activity, counts, load, routed_records, sessions
from moldau.pipelines.flow import SqlStep
from moldau.pipelines.job_runner import RunConfig, run_flow
from moldau.pipelines.plots import Share
from moldau.pipelines.pyspark_script import SETTINGS
from moldau.pipelines.report import report_html
from moldau.pipelines.report_figures import make_report
from moldau.pipelines.run_folder import RunFolder, new_run
from moldau.testing.broker import Broker
from moldau_dev.spark import read_committed, run_script


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    """A new topic for old records, which would be deleted with the default retention."""
    return moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=2, **{"retention.ms": "-1"})


def raw(spark: Any, values: list[bytes | None]) -> Any:
    """Return rows in the schema of the source, with timestamps at the start of the hour."""
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
def test_invalid_events_become_dead_letters_with_the_reason(spark: Any) -> None:
    good = [event(number, "u", START_MS + number) for number in range(3)]
    frame = through(raw(spark, [*good, None, *BAD]), *Activity.checking(), SqlStep(routed_records("out")))
    found = frame.collect()
    assert [row["topic"] for row in found] == ["out.events"] * 3 + ["out.dead-letters"] * (1 + len(BAD))
    headers_of = [{each["key"]: bytes(each["value"]).decode() for each in row["headers"] or ()} for row in found]
    assert [each.get("moldau.reason") for each in headers_of] == [None, None, None, "no value", *BAD.values()]
    assert headers_of[4] == {
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
    events = through(raw(spark, values), *Activity.checking(), SqlStep(routed_records("out")), SqlStep(EVENTS))
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
def test_ejected_activity_gives_the_same_results(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    fill(moldau_broker, topic, 0, 60)
    job = made(topic, moldau_broker, tmp_path)
    script = job.script(master="local[2]", checkpoint=str(tmp_path / "checkpoint"), once=True)
    run_script(script)
    # The script creates topics with the broker's default number of partitions: one.
    assert ids_of(moldau_broker, job.out, 1) == Counter(f"e{number}" for number in range(60))
    letters = read_committed(moldau_broker, f"{job.out}.dead-letters", 1)
    assert Counter(value for _, value in letters) == Counter(list(BAD))
    assert make_report(spark, job, "now").events == 60
    assert {name for name in SETTINGS if spark.conf.get(name) != SETTINGS[name]} == set()


@pytest.mark.proves("D3", part="the report")
def test_report_counts_dead_letters_of_other_producers(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    job = made(topic, moldau_broker, tmp_path)
    with moldau_broker.client() as client:
        job.create_topics(client, 1)
        foreign = [(START_MS, None, b"?", headers) for headers in ([("x", b"1")], [])]
        client.produce(f"{job.out}.dead-letters", 0, foreign)
    report = make_report(spark, job, "now")
    assert (report.dead_letter_count, report.dead_letters) == (2, [Share("None", 2)])
    assert (report.events, report.users, report.sessions) == (0, 0, 0)
    assert "<p>None.</p>" in report_html(report)


def test_late_events_are_dropped_and_counted(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    del spark
    job = made(topic, moldau_broker, tmp_path, rows_per_batch_max=1)
    with moldau_broker.client() as client:
        job.create_topics(client, PARTITIONS)
    # The watermark follows from the batch before the last; here each event is a batch of one partition.
    send(moldau_broker, topic, *zip((2, 4, 6), (3600, 3601, 1), strict=True))
    folder = RunFolder(tmp_path, job.name)
    config = RunConfig(folder=folder, master="local[2]", once=True)
    run_flow(job.clean(), config, new_run("activity", {}, "local[2]"))
    assert ids_of(moldau_broker, job.out) == Counter(["e2", "e4"])
    assert [(each.part, each.rows_total, each.late_total) for each in folder.parts] == [("clean", 3, 1)]
