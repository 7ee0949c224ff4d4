"""Topics as tables, without Spark: the topics named by a query, and the start of a sample."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.cli.sql import named_extents
from moldau.client.async_client import AsyncClient
from moldau.client.types import Isolation, OffsetResult
from moldau.model.errors import LeaderNotAvailable
from moldau.model.ids import TopicPartition
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.pipelines.requirements import PipelineError
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
        ("/* users don't count */ select page from clicks where site = 'a'", ["clicks"]),
        ("select \"users' things\" as what, page from clicks where site = 'a'", ["clicks"]),
        ("select page -- don't ask\nfrom clicks where site = 'a'", ["clicks"]),
        ("select 1", []),
    ],
)
def test_topics_named_by_a_query_are_found(query: str, topics: list[str]) -> None:
    assert named_topics(query, TOPICS) == topics


@pytest.mark.proves("D3", part="moldau sql")
def test_topic_names_that_differ_in_case_only_must_match_exactly() -> None:
    """View names are case-insensitive: a session can hold only one of them."""
    topics = ("Clicks", "clicks", "users")
    assert named_topics("select * from clicks join Users", topics) == ["clicks", "users"]
    assert named_topics("select * from `Clicks`", topics) == ["Clicks"]
    for query in ("select * from CLICKS", "select * from clicks join Clicks"):
        with pytest.raises(PipelineError, match="Clicks and clicks differ only in case"):
            named_topics(query, topics)


def test_sample_has_the_newest_records_of_every_partition() -> None:
    ends = {TopicPartition("t", 0): (10, 5000), TopicPartition("t", 1): (0, 3)}
    assert json.loads(sample_starts(ends, 100)) == {"t": {"0": 4950, "1": 0}}


def test_query_without_a_topic_is_rejected(moldau_broker: Broker) -> None:
    result = CliRunner().invoke(app, ["sql", "select 1", "-b", moldau_broker.bootstrap_servers])
    assert result.exit_code == 1
    assert "names no topic" in result.stderr


class HalfDown(AsyncClient):
    """A client of a cluster in which some topics have no leader."""

    down: frozenset[str] = frozenset()

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetResult]:
        found = await super().list_offsets(times, isolation=isolation)
        return {
            place: replace(each, error=LeaderNotAvailable()) if place.topic in self.down else each
            for place, each in found.items()
        }


@pytest.mark.proves("D3", part="moldau sql")
def test_query_ignores_unavailable_topics_it_does_not_name(moldau_broker: Broker) -> None:
    name = f"tables-{uuid.uuid4().hex}"
    named, other = (moldau_broker.create_topic(f"{name}-{each}", partitions=2) for each in ("named", "other"))

    async def ask(query: str) -> dict[TopicPartition, tuple[int, int]]:
        ports = (SocketNetwork(), SystemClock(), system_random())
        client = HalfDown(*ports, moldau_broker.bootstrap_servers)
        client.down = frozenset({other})
        async with client:
            return await named_extents(client, query)

    found = asyncio.run(ask(f"select * from `{named}`"))
    assert found == {TopicPartition(named, 0): (0, 0), TopicPartition(named, 1): (0, 0)}
    with pytest.raises(LeaderNotAvailable):
        asyncio.run(ask(f"select * from `{named}` join `{other}`"))
