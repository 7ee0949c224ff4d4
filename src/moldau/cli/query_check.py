"""Checks of a `moldau sql` query that need no Spark, which takes seconds to start: quotes, parentheses, topic names.

This is no parser. It finds the mistakes that can be found with certainty and leaves everything else to Spark: a query
that Spark accepts must never be rejected here.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from moldau.cli.errors import CommandError

_TOKEN: Final = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<comment>--[^\n]*|/\*.*?\*/)
    |`(?P<quoted>(?:[^`]|``)+)`
    |(?P<name>[A-Za-z_]\w*)
    |(?P<open>['"`]|/\*)
    |(?P<sign>\d[\w.]*|\S)""",
    re.DOTALL | re.VERBOSE,
)
_RAW_NAME: Final = re.compile(r"[\w.-]+")
_STATEMENTS: Final = frozenset(
    """add alter analyze begin cache call clear comment commit convert create declare delete desc describe dfs drop
    execute explain export from get import insert list load lock map merge msck put reduce refresh remove reset
    rollback select set show start table truncate uncache unlock update use values with""".split()
)
_QUERIES: Final = ("select", "with", "from")
_NOT_TABLES: Final = frozenset({"lateral", "values", "select", "table", "stream", "json_table", "unnest"})


class Token(NamedTuple):
    """A name, in lower case unless it was quoted, or a sign; strings are `''`."""

    value: str
    position: int
    is_quoted: bool = False


def check_query(query: str, topics: Collection[str]) -> None:
    tokens = list(_tokens(query))
    if not tokens:
        raise CommandError("the query is empty; try: select * from TOPIC limit 10")
    _check_statement(tokens[0])
    _check_parentheses(tokens)
    known = {each.lower() for each in topics} | _common_tables(tokens)
    for table in _tables(tokens):
        raw = _RAW_NAME.match(query, table.position)
        if raw is not None and raw[0].lower() != table.value and raw[0] in topics:
            raise CommandError(f"put the topic's name in backquotes: `{raw[0]}`")
        if table.value.lower() not in known and (raw is None or "." not in raw[0]):  # catalog.schema.table: not a topic
            raise CommandError(_unknown_topic(table, topics))


def _tokens(query: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(query):
        kind, position = match.lastgroup, match.start()
        if kind == "open":
            raise CommandError(f"{match[0]} at position {position + 1} of the query is not closed")
        if kind == "quoted":
            yield Token(match["quoted"].replace("``", "`"), position, is_quoted=True)
        elif kind == "text":
            yield Token("''", position)
        elif kind != "comment":
            yield Token(match[0].lower(), position)


def _check_statement(first: Token) -> None:
    if first.value.isalpha() and not first.is_quoted and first.value not in _STATEMENTS:
        (hint,) = get_close_matches(first.value, sorted(_STATEMENTS), 1) or ("select",)
        raise CommandError(f"the query starts with {first.value}; did you mean {hint}?")


def _check_parentheses(tokens: Sequence[Token]) -> None:
    unclosed: list[Token] = []
    for token in tokens:
        if token.value == "(" and not token.is_quoted:
            unclosed.append(token)
        elif token.value == ")" and not token.is_quoted:
            if not unclosed:
                raise CommandError(f") at position {token.position + 1} of the query has no (")
            unclosed.pop()
    if unclosed:
        raise CommandError(f"( at position {unclosed[-1].position + 1} of the query is not closed")


def _common_tables(tokens: Sequence[Token]) -> set[str]:
    """Return the names before AS (…) or (columns) AS (…): the tables of a WITH clause, and possibly more."""
    names = set()
    for index, token in enumerate(tokens[:-1]):
        if tokens[index + 1].value in ("as", "("):
            names.add(token.value.lower())
    return names


def _tables(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the names after FROM and JOIN; not those of functions such as `extract(year from …)` or `range(10)`."""
    is_query = [True]  # whether the parentheses around the token hold a query
    for index, token in enumerate(tokens):
        if token.is_quoted:
            continue
        following = tokens[index + 1 : index + 3]
        if token.value == "(":
            is_query.append(bool(following) and following[0].value in (*_QUERIES, "("))
        elif token.value == ")":
            is_query.pop()
        elif token.value in ("from", "join") and is_query[-1] and following and not _is_distinct_from(tokens, index):
            table, after = following[0], following[1].value if len(following) > 1 else ""
            is_name = table.is_quoted or (table.value[0].isalpha() and table.value not in _NOT_TABLES)
            if is_name and after != "(":
                yield table


def _is_distinct_from(tokens: Sequence[Token], index: int) -> bool:
    """`a IS [NOT] DISTINCT FROM b` compares."""
    return index > 1 and tokens[index - 1].value == "distinct" and tokens[index - 2].value in ("is", "not")


def _unknown_topic(table: Token, topics: Collection[str]) -> str:
    hint = get_close_matches(table.value, sorted(topics), 1)
    suggestion = f"; did you mean {hint[0]}?" if hint else "; moldau topic list shows the topics"
    return f"there is no topic {table.value}{suggestion}"
