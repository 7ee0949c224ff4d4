"""`moldau pipeline run check` and `replay-dead`: violations are set aside, counted, fixed and replayed."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker
from moldau_dev.spark import read_committed, reading

RULES = """
{topic}:
  - {{field: id, not_null: true}}
  - {{field: id, unique: 1 hour}}
  - {{field: price, range: [0, 100]}}
  - {{field: page, regex: '^/', name: page begins with a slash}}
  - {{field: kind, one_of: [view, buy]}}
  - {{field: user, exists_in: {users}}}
"""
GOOD: list[dict[str, Any]] = [{"id": 1, "price": 5, "page": "/a", "kind": "buy", "user": "ann"}, {"id": 2}]
BAD: list[tuple[Any, str]] = [
    ({"price": 5}, "id not_null"),
    ({"id": 3, "price": 101, "page": "x"}, "price range; page begins with a slash"),
    ({"id": 4, "kind": "sell"}, "kind one_of"),
    ({"id": 5, "user": "bob"}, "user exists_in"),
    ({"id": 6, "user": "carl"}, "user exists_in"),
    ([1], "not a JSON object"),
]


def run(broker: Broker, folder: Path, *words: str) -> str:
    options = ("--folder", str(folder / "pipelines"), "--bootstrap-servers", broker.bootstrap_servers)
    done = CliRunner().invoke(app, ["pipeline", *words, *options])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


@pytest.mark.proves("D8")
def test_violations_are_set_aside_fixed_and_replayed(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    users, letters, clean = (
        moldau_broker.create_topic(f"{topic}.{each}", partitions=1) for each in ("u", "dead", "ok")
    )
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    for key, value in (("ann", b"1"), ("bob", b"1"), ("bob", None)):
        producer.produce(users, value, key)
    for value in (*GOOD, *(each for each, _ in BAD), GOOD[1]):
        producer.produce(topic, json.dumps(value), "k", partition=0, headers=[("from", b"shop")])
    assert producer.flush(30) == 0
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.format(topic=topic, users=users))
    words = ("run", "check", topic, "--rules", str(rules), "--dead-letters", letters, "--to", clean, "--once")
    run(moldau_broker, tmp_path, *words)

    passed = [json.loads(value) for _, value in read_committed(moldau_broker, clean, 1)]
    assert sorted(passed, key=lambda each: each["id"]) == GOOD  # the duplicate is dropped
    rows = reading(spark.read, moldau_broker, letters, includeHeaders=True).collect()
    headers = [{each["key"]: bytes(each["value"]).decode() for each in row["headers"]} for row in rows]
    reasons = {bytes(row["value"]).decode(): each["moldau.reason"] for row, each in zip(rows, headers, strict=True)}
    assert reasons == {json.dumps(value): reason for value, reason in BAD}
    places = {(each["moldau.topic"], each["moldau.partition"], each["from"]) for each in headers}
    assert places == {(topic, "0", "shop")}
    metrics = (tmp_path / "pipelines" / f"check-{topic}" / "metrics.prom").read_text()
    assert f'rule_violations_total{{pipeline="check-{topic}",rule="user exists_in"}} 2' in metrics
    page = (tmp_path / "pipelines" / f"check-{topic}" / "report.html").read_text()
    assert "page begins with a slash" in page
    assert "<b>7</b>violations" in page

    listed = json.loads(run(moldau_broker, tmp_path, "replay-dead", letters, "--list", "--json"))
    assert (listed[0]["reason"], listed[0]["count"], listed[0]["topic"]) == ("user exists_in", 2, topic)
    fix = tmp_path / "fix.sql"
    fixed = "cast(replace(cast(value as string), 'sell', 'buy') as binary) as value"
    fix.write_text(f"select key, {fixed}, headers, timestamp, topic from input")
    run(moldau_broker, tmp_path, "replay-dead", letters, "--reason", "^kind", "--sql", str(fix), "--once")
    run(moldau_broker, tmp_path, *words)
    assert json.loads(read_committed(moldau_broker, clean, 1)[-1][1]) == {"id": 4, "kind": "buy"}
    assert len(read_committed(moldau_broker, clean, 1)) == 3
    assert len(read_committed(moldau_broker, letters, 1)) == len(BAD)
