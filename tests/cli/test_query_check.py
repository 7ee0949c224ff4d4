"""Mistakes in a query of `moldau sql` are found before Spark starts, and no valid query is rejected."""

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.query_check import check_query

TOPICS = ["clicks", "orders", "page-views", "eu.orders"]


@pytest.mark.parametrize(
    "query",
    [
        "select page, count(*) from clicks group by page",
        "SELECT * FROM Clicks c JOIN orders o ON c.id = o.id",
        "select * from `page-views`, `eu.orders`",
        "with top as (select page from clicks), rest (a) as (select 1) select * from top join rest",
        "select extract(year from _timestamp), trim(both 'x' from page) from clicks",
        "select * from clicks where page is not distinct from 'a'",
        "select 'from nowhere', \"it's\", '\\'' from clicks -- from here on",
        "/* from nowhere ( */ from clicks select page",
        "select * from (select * from clicks) where page in (select page from orders)",
        "(select page from clicks) union (select page from orders)",
        "select * from range(10)",
        "select * from clicks lateral view explode(tags) t as tag",
        "select * from values (1, 2)",
        "explain select * from clicks",
        "select 1",
        "select a.b from clicks a",
        "select * from spark_catalog.default.clicks",
    ],
)
def test_valid_query_is_accepted(query: str) -> None:
    check_query(query, TOPICS)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "the query is empty"),
        ("-- nothing", "the query is empty"),
        ("selct * from clicks", "the query starts with selct; did you mean select?"),
        ("select * from clcks", "there is no topic clcks; did you mean clicks?"),
        ("select * from clicks join ordrs on 1 = 1", "there is no topic ordrs; did you mean orders?"),
        ("select * from (select * from xyz)", "there is no topic xyz; moldau topic list shows the topics"),
        ("select * from page-views", "put the topic's name in backquotes: `page-views`"),
        ("select * from eu.orders", "put the topic's name in backquotes: `eu.orders`"),
        ("select count(* from clicks", "( at position 13 of the query is not closed"),
        ("select count(*)) from clicks", ") at position 16 of the query has no ("),
        ("select 'a from clicks", "' at position 8 of the query is not closed"),
    ],
)
def test_mistake_is_reported_with_a_hint(query: str, message: str) -> None:
    with pytest.raises(CommandError) as raised:
        check_query(query, TOPICS)
    assert str(raised.value).startswith(message)
