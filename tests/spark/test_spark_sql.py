"""`moldau sql` on Spark: JSON fields are columns."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from moldau.cli.main import app
from moldau.pipelines.streaming_query import QUERY_NAME
from moldau.testing.broker import Broker

SEEN_S_MAX = 300


def select(broker: Broker, query: str) -> list[dict[str, Any]]:
    words = ["sql", query, "--json", "--master", "local[2]", "-b", broker.bootstrap_servers]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.proves("D3")
def test_topics_are_queried_as_tables(spark: Any, moldau_broker: Broker, topic: str) -> None:
    del spark
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    for number in range(9):
        value = {"page": f"/{number % 3}", "user": {"id": number}, "late": number > 7}
        producer.produce(topic, json.dumps(value), f"k{number}", partition=number % 2)
    producer.produce(topic, b"not json", partition=0)
    producer.produce(topic, None, b"gone", partition=0)
    plain = moldau_broker.create_topic(f"{topic}.plain", partitions=1)
    producer.produce(plain, b"hello")
    assert producer.flush(30) == 0
    assert select(
        moldau_broker, f"select page, count(*) as n from `{topic}` where page > '' group by page order by page"
    ) == [
        {"page": "/0", "n": 3},
        {"page": "/1", "n": 3},
        {"page": "/2", "n": 3},
    ]
    (last,) = select(moldau_broker, f"select user.id as id, user, _key, _partition from `{topic}` where late")
    assert last == {"id": 8, "user": {"id": 8}, "_key": "k8", "_partition": 0}
    assert select(moldau_broker, f"select value, _offset from `{plain}`") == [{"value": "hello", "_offset": 0}]
    result = CliRunner().invoke(app, ["sql", f"select nope from `{plain}`", "-b", moldau_broker.bootstrap_servers])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "nope" in result.stderr


@pytest.mark.proves("D3", part="moldau sql")
def test_fields_of_unusual_names_and_types_are_kept(spark: Any, moldau_broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    capitals, lists = (moldau_broker.create_topic(f"{topic}.{each}", partitions=1) for each in ("capitals", "lists"))
    producer.produce(topic, '{"_key": "mine", "page": "/a", "page": "/b", "in": {"x": 1, "x": 2}, "n": NaN}', "k")
    producer.produce(capitals, '{"id": 1}')
    producer.produce(capitals, '{"ID": 2}')
    producer.produce(lists, '[{"page": "/a"}, {"page": "/b"}]')
    assert producer.flush(30) == 0
    (row,) = select(moldau_broker, f"select _key, __key, page, in.x, n from `{topic}`")
    assert row == {"_key": "k", "__key": "mine", "page": "/b", "x": 2, "n": "nan"}
    assert select(moldau_broker, f"select value from `{lists}`") == [{"value": '[{"page": "/a"}, {"page": "/b"}]'}]

    words = ["sql", f"select id from `{capitals}`", "-b", moldau_broker.bootstrap_servers, "--master", "local[2]"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "ambiguous" in result.stderr) == (1, True)
    case_sensitive = CliRunner().invoke(app, [*words, "--json", "--conf", "spark.sql.caseSensitive=true"])
    spark.conf.unset("spark.sql.caseSensitive")
    assert [json.loads(line) for line in case_sensitive.stdout.splitlines()] == [{"id": 1}, {"id": None}]


@pytest.mark.proves("D3", part="moldau sql")
def test_timestamps_beyond_the_range_of_python_are_shown(spark: Any, moldau_broker: Broker, topic: str) -> None:
    """Timestamps are not checked: microseconds taken for milliseconds give the year 55840."""
    del spark
    any_time = {"message.timestamp.after.max.ms": str(2**62), "message.timestamp.before.max.ms": str(2**62)}
    odd = moldau_broker.create_topic(f"{topic}.odd", partitions=1, **{"retention.ms": "-1", **any_time})
    times_ms = [1_700_000_000_000 * 1000, -1, -(10**14), 253_402_300_799_999, 253_402_300_800_000, 1]
    with moldau_broker.client() as client:
        client.produce(odd, 0, [(each, None, b'{"page": "/a"}', ()) for each in times_ms])
    query = f"select _timestamp, _timestamp, _offset from `{odd}` order by _offset"
    expected = [
        "+55840-11-08T22:13:20+00:00",
        "1969-12-31T23:59:59.999000+00:00",
        "-1199-02-15T14:13:20+00:00",
        "9999-12-31T23:59:59.999000+00:00",
        "+10000-01-01T00:00:00+00:00",
        "1970-01-01T00:00:00.001000+00:00",
    ]
    assert select(moldau_broker, query) == [
        {"_timestamp": each, "_timestamp_2": each, "_offset": at} for at, each in enumerate(expected)
    ]
    nested = (
        "select array(_timestamp) as l, named_struct('a', _timestamp) as s, map(_timestamp, 1) as m, "
        f"cast(_timestamp as date) as d, cast(_timestamp as timestamp_ntz) as n from `{odd}` where _offset in (1, 4) "
        "order by _offset"
    )
    before, after = select(moldau_broker, nested)
    at = expected[4]
    assert after == {"l": [at], "s": {"a": at}, "m": {at: 1}, "d": "+10000-01-01", "n": at.removesuffix("+00:00")}
    assert (before["d"], before["n"]) == ("1969-12-31", "1969-12-31T23:59:59.999000")
    shown = stream(moldau_broker, f"select _timestamp from `{odd}`", "--json", "--limit", "6")
    assert [json.loads(line)["_timestamp"] for line in shown.stdout.splitlines()] == expected


def stream(broker: Broker, query: str, *more: str) -> Result:
    words = ["sql", query, "--stream", *more, "--master", "local[2]", "-b", broker.bootstrap_servers]
    return CliRunner().invoke(app, words)


def send(broker: Broker, topic: str, *pages: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for page in pages:
        producer.produce(topic, json.dumps({"page": page}), partition=0)
    assert producer.flush(30) == 0


def at_batch(spark: Any, batch: int, act: Callable[[], None]) -> threading.Thread:
    """Call `act` once the query has completed the given number of batches with rows."""

    def watch() -> None:
        deadline = time.monotonic() + SEEN_S_MAX
        while time.monotonic() < deadline:
            time.sleep(0.1)  # polls, because the query has no event for a completed batch
            for query in spark.streams.active:
                done = [each for each in query.recentProgress if each["numInputRows"]]
                if query.name == QUERY_NAME and len(done) >= batch:
                    act()
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.proves("D3")
def test_stream_rows_are_shown_as_they_arrive(spark: Any, moldau_broker: Broker, topic: str) -> None:
    send(moldau_broker, topic, "/a", "/b", "/a")
    more = at_batch(spark, 1, lambda: send(moldau_broker, topic, "/b", "/a"))
    query = f"select page, _offset from `{topic}` where page = '/a'"
    result = stream(moldau_broker, query, "--json", "--limit", "3")
    more.join(SEEN_S_MAX)
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert found == [{"page": "/a", "_offset": 0}, {"page": "/a", "_offset": 2}, {"page": "/a", "_offset": 4}]
    assert not [each for each in spark.streams.active if each.name == QUERY_NAME]


@pytest.mark.proves("D3")
def test_stream_aggregates_are_updated_until_interrupted(spark: Any, moldau_broker: Broker, topic: str) -> None:
    send(moldau_broker, topic, "/a", "/b", "/a")
    query = f"select page, count(*) as n from `{topic}` group by page"
    again = at_batch(spark, 1, lambda: send(moldau_broker, topic, "/a"))
    end = at_batch(spark, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = stream(moldau_broker, query, "--json")
    again.join(SEEN_S_MAX)
    end.join(SEEN_S_MAX)
    assert result.exit_code == 130, result.output
    found = [tuple(json.loads(line).values()) for line in result.stdout.splitlines()]
    assert sorted(found[:2]) == [("/a", 2), ("/b", 1)]
    assert found[2:] == [("/a", 3)]
    assert "Traceback" not in result.stderr

    end = at_batch(spark, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = stream(moldau_broker, f"{query} order by n desc")
    end.join(SEEN_S_MAX)
    assert [line.split() for line in result.stdout.splitlines() if line] == [["PAGE", "N"], ["/a", "3"], ["/b", "1"]]


@pytest.mark.proves("D3")
def test_stream_shows_all_rows_of_a_batch(spark: Any, moldau_broker: Broker, topic: str) -> None:
    send(moldau_broker, topic, "/a")
    end = at_batch(spark, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = stream(moldau_broker, f"select explode(sequence(1, 25000)) as n from `{topic}`", "--json")
    end.join(SEEN_S_MAX)
    assert result.exit_code == 130, result.output
    assert [json.loads(line)["n"] for line in result.stdout.splitlines()] == list(range(1, 25_001))


@pytest.mark.proves("D3")
def test_truncated_stream_table_counts_all_rows(spark: Any, moldau_broker: Broker, topic: str) -> None:
    pages = [f"/{number}" for number in range(20)]
    send(moldau_broker, topic, *pages)
    again = at_batch(spark, 1, lambda: send(moldau_broker, topic, *pages))
    more = at_batch(spark, 2, lambda: send(moldau_broker, topic, *pages))
    end = at_batch(spark, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    query = f"select page, count(*) as n from `{topic}` group by page"
    result = stream(moldau_broker, query, "--limit", "1")
    for each in (again, more, end):
        each.join(SEEN_S_MAX)
    assert result.exit_code == 130, result.output
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("/")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select * from `{}` order by _offset", "a stream cannot be sorted"),
        (
            "select *, row_number() over (partition by _key order by _offset) from `{}`",
            "are not supported on a stream",
        ),
        ("select nope from `{}`", "nope"),
        ("select count(*) from (select page, count(*) from `{}` group by page)", "this query cannot be streamed: "),
    ],
)
def test_query_that_cannot_be_streamed_is_rejected_in_one_line(
    spark: Any, moldau_broker: Broker, topic: str, query: str, reason: str
) -> None:
    send(moldau_broker, topic, "/a")
    result = stream(moldau_broker, query.format(topic))
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not [each for each in spark.streams.active if each.name == QUERY_NAME]
