"""Topics as tables, without Spark: which topics a query names, and where a sample of them begins."""

import json

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.model.ids import TopicPartition
from moldau.pipelines.tables import named_topics, sample_starts
from moldau.testing.broker import Broker

TOPICS = ("clicks", "page-views", "a.b", "users", "1st")


@pytest.mark.parametrize(
    ("query", "topics"),
    [
        ("select page, count(*) from clicks group by page", ["clicks"]),
        ("SELECT * FROM Clicks c JOIN users u ON c.user = u.id", ["clicks", "users"]),
        ("select * from `page-views` join `a.b`", ["a.b", "page-views"]),
        ("select 'users' as what, \n -- of users \n x from `1st`", ["1st"]),
        ("select 'it''s users' from clicks", ["clicks"]),
        ("select 1", []),
    ],
)
def test_the_topics_of_a_query_are_those_it_names(query: str, topics: list[str]) -> None:
    assert named_topics(query, TOPICS) == topics


def test_a_sample_has_the_newest_of_every_partition() -> None:
    ends = {TopicPartition("t", 0): (10, 5000), TopicPartition("t", 1): (0, 3)}
    assert json.loads(sample_starts(ends, 100)) == {"t": {"0": 4950, "1": 0}}


def test_a_query_without_a_topic_is_refused_before_anything_starts(moldau_broker: Broker) -> None:
    result = CliRunner().invoke(app, ["sql", "select 1", "-b", moldau_broker.bootstrap_servers])
    assert result.exit_code == 1
    assert "names no topic that is there" in result.stderr
