"""Pipelines whose driver is killed during their batches: the crash is reported, and they resume exactly once."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from activity_scene import BAD, LATER_S, PARTITIONS, expected_counts, fill, ids_of, send, user_of, values
from quick_settings import DRIVER_SETTINGS
from spark_drivers import held_driver
from trapped_pipelines import RENAMING, run_activity, run_archive, run_transform

from moldau.pipelines.activity import Activity
from moldau.pipelines.archive import records_of
from moldau.pipelines.report_figures import make_report
from moldau.pipelines.run_folder import RunFolder, State
from moldau.testing.broker import Broker
from moldau_dev.spark import produce, read_committed, reading

ROWS: Final = 300
EVENTS: Final = 200
PARTS: Final = ["clean", "counts", "sessions", "load", "lake"]
# Place, and the first batch in which the trap is armed. Counts are written when a window closes.
TRAPS: Final = {
    "moved": ("publishing", 1),
    "kept": (RENAMING, 1),
    "clean": ("publishing", 1),
    "counts": ("committed", 1),
}


@pytest.mark.proves("D2", "D3", "O3", "T3")
def test_pipelines_resume_exactly_once_when_their_driver_crashes(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    job = Activity(
        name="activity",
        bootstrap_servers=moldau_broker.bootstrap_servers,
        topic=moldau_broker.create_topic(f"{topic}.raw", partitions=PARTITIONS, **{"retention.ms": "-1"}),
        out=f"{topic}.out",
        lake=str(tmp_path / "events"),
        lateness="3 minutes",
        every="0 seconds",
        rows_per_batch_max=100,
    )
    moldau_broker.create_topic(f"{topic}.moved", partitions=2)
    with moldau_broker.client() as client:
        job.create_topics(client, PARTITIONS)
        job.create_topics(client, PARTITIONS)  # existing topics are kept
    produce(moldau_broker, topic, ROWS)
    raw_count = fill(moldau_broker, job.topic, 0, EVENTS)
    plan: dict[str, Any] = {
        "servers": moldau_broker.bootstrap_servers,
        "topic": topic,
        "folder": str(tmp_path / "pipelines"),
        "lake": str(tmp_path / "lake"),
        "rows_per_batch": ROWS // 3,
        "activity": {name: getattr(job, name) for name in Activity.__slots__},
        "settings": DRIVER_SETTINGS,
        "traps": {
            name: {"place": place, "first_batch": batch, "is_spared": False} for name, (place, batch) in TRAPS.items()
        },
    }
    folders = [RunFolder(tmp_path / "pipelines", each) for each in ("moved", "kept", "activity")]
    with held_driver("trapped_pipelines.py", {**plan, "master": "local[3]"}, tmp_path / "life", set(TRAPS)) as held:
        assert {name: each.place for name, each in held.items()} == {name: place for name, (place, _) in TRAPS.items()}
        assert [name for name, each in held.items() if each.batch < TRAPS[name][1]] == []
        assert [each.state for each in folders] == [State.RUNNING] * 3
    assert [each.state for each in folders] == [State.DIED] * 3

    send(moldau_broker, job.topic, (1001, LATER_S), (1002, LATER_S + 1))  # these close the earlier windows
    plan["master"] = "local[2]"
    run_transform(plan)
    run_archive(plan)
    run_activity(plan, once=True)
    assert [each.state for each in folders] == [State.DONE] * 3
    rows = read_committed(moldau_broker, f"{topic}.moved", 2)
    assert sorted(int(value) for _, value in rows) == list(range(ROWS))
    assert [(each.rows_total, each.lag_total) for each in folders[0].parts] == [(ROWS, 0)]
    found = [(row["partition"], row["offset"]) for row in records_of(spark, plan["lake"]).collect()]
    assert sorted(found) == [(partition, offset) for partition in (0, 1) for offset in range(ROWS // 2)]
    assert [(each.part, each.late_total) for each in folders[2].parts] == [(each, 0) for each in PARTS]
    assert folders[2].parts[0].rows_total == raw_count + 2
    check_results(spark, moldau_broker, job)
    check_report(spark, job, (tmp_path / "pipelines" / "report.html").read_text())


def check_results(spark: Any, broker: Broker, job: Activity) -> None:
    wanted = Counter(f"e{number}" for number in [*range(EVENTS), 1001, 1002])
    assert ids_of(broker, job.out) == wanted
    lake = spark.read.parquet(job.lake)
    assert Counter(row["event_id"] for row in lake.select("event_id").collect()) == wanted
    letters = reading(
        spark.read, broker, f"{job.out}.dead-letters", kafka__isolation__level="read_committed", includeHeaders="true"
    ).collect()
    headers = [{each["key"]: bytes(each["value"]).decode() for each in row["headers"]} for row in letters]
    reasons = Counter((bytes(row["value"]), each["moldau.reason"]) for row, each in zip(letters, headers, strict=True))
    assert reasons == Counter(BAD.items())
    places = {(each["h"], each["moldau.topic"], each["moldau.partition"]) for each in headers}
    assert places == {("1", job.topic, "1")}

    counted = [
        ((each["start"], each["kind"], each["page"]), each["events"]) for each in values(broker, f"{job.out}.counts")
    ]
    assert sorted(counted) == sorted(expected_counts(EVENTS).items())
    visits = [(each["user"], each["events"]) for each in values(broker, f"{job.out}.sessions")]
    assert sorted(visits) == sorted(Counter(map(user_of, range(EVENTS))).items())
    loads: Counter[tuple[str, str]] = Counter()
    for each in values(broker, f"{job.out}.load"):
        loads[each["what"], each["name"]] += each["records"]
    users = {("key", user): count for user, count in visits}
    assert loads == {**users, ("partition", "0"): EVENTS // 2, ("partition", "1"): EVENTS // 2}


def check_report(spark: Any, job: Activity, page: str) -> None:
    found = make_report(spark, job, "now")
    assert (found.events, found.users, found.sessions) == (EVENTS + 2, 8, 8 + 2)
    assert (found.step, found.by_time[:11], sum(found.by_time)) == ("2 minutes", [20] * 10 + [0], EVENTS + 2)
    assert {each.name: each.count for each in found.by_kind} == {"view": 182, "purchase": 20}
    assert found.hot_keys[0].name == "hot"
    assert [(each.name, each.count) for each in found.partitions] == [("0", 101), ("1", 101)]
    assert (sum(each.count for each in found.dead_letters), found.dead_letter_count) == (len(BAD), len(BAD))
    assert "Activity of" in page
    assert f"<b>{EVENTS + 2}</b>events" in page
