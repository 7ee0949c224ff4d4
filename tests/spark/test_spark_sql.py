"""`moldau sql` on Spark: JSON fields are columns, whatever else is there."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker


def ask(broker: Broker, query: str) -> list[dict[str, Any]]:
    words = ["sql", query, "--json", "--master", "local[2]", "-b", broker.bootstrap_servers]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.proves("D3")
def test_topics_are_tables(spark: Any, moldau_broker: Broker, topic: str) -> None:
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
    assert ask(
        moldau_broker, f"select page, count(*) as n from `{topic}` where page > '' group by page order by page"
    ) == [
        {"page": "/0", "n": 3},
        {"page": "/1", "n": 3},
        {"page": "/2", "n": 3},
    ]
    (last,) = ask(moldau_broker, f"select user.id as id, user, _key, _partition from `{topic}` where late")
    assert last == {"id": 8, "user": {"id": 8}, "_key": "k8", "_partition": 0}
    assert ask(moldau_broker, f"select value, _offset from `{plain}`") == [{"value": "hello", "_offset": 0}]
    result = CliRunner().invoke(app, ["sql", f"select nope from `{plain}`", "-b", moldau_broker.bootstrap_servers])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "nope" in result.stderr
