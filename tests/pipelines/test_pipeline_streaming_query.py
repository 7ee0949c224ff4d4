"""`moldau sql --stream` without Spark: limits, values as shown, and errors of queries that cannot be streamed."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, IntegerType, MapType, StructType, TimestampNTZType, TimestampType
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.cli.sql import QueryRun
from moldau.pipelines.streaming_query import ROWS_AT_ONCE, TABLE_ROWS_MAX, Rows, StreamedQuery, explain_rejection
from moldau.pipelines.tables import Tables
from moldau.pipelines.timestamps import moment

SORTED = "Sorting is not supported on streaming DataFrames/Datasets, unless it is on aggregated DataFrame/Dataset"
NUMBERS = StructType().add("n", IntegerType())
NO_AGGREGATE = "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: complete. SQLSTATE: 42KDE"


class Column:
    """A column of a fake frame."""

    def cast(self, _: Any) -> "Column":
        return self

    def alias(self, _: str) -> "Column":
        return self


@dataclass
class Frame:
    """A fake frame with the rows of a batch."""

    rows: list[Any]
    schema: StructType = NUMBERS

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def limit(self, count: int) -> "Frame":
        return Frame(self.rows[:count], self.schema)

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802
        return iter(self.rows)

    def toDF(self, *_: str) -> "Frame":  # noqa: N802
        return self

    def __getitem__(self, _: str) -> "Column":
        return Column()

    def select(self, *_: Any) -> "Frame":
        """Return itself: the rows hold timestamps in the form that Spark returns."""
        return self


def streamed(shown: list[Rows], mode: str, rows_max: int | None) -> StreamedQuery:
    made = StreamedQuery(shown.append, (mode,), rows_max)
    made._mode = mode
    return made


@pytest.mark.proves("D3", part="moldau sql")
def test_stream_ends_after_the_row_limit() -> None:
    shown: list[Rows] = []
    result = streamed(shown, "append", 3)
    result._take(Frame([(1,), (2,)]), 0)
    assert not result.is_done
    result._take(Frame([(3,), (4,)]), 1)
    result._take(Frame([(5,)]), 2)
    assert result.is_done
    assert [each.rows for each in shown] == [[(1,), (2,)], [(3,)]]


@pytest.mark.proves("D3", part="moldau sql")
def test_rows_after_the_limit_are_read_so_that_the_batch_commits() -> None:
    """Spark fails a batch in which the state of a partition was not committed."""
    unread = iter([(1,), (2,), (3,)])
    frame = Frame([])
    frame.toLocalIterator = lambda: unread  # type: ignore[method-assign]
    streamed([], "append", 1)._take(frame, 0)
    assert list(unread) == []


def test_complete_table_is_limited_in_each_batch() -> None:
    shown: list[Rows] = []
    result = streamed(shown, "complete", 2)
    for batch in range(3):
        result._take(Frame([(1,), (2,), (3,)]), batch)
    assert not result.is_done
    assert [each.rows for each in shown] == [[(1,), (2,)]] * 3
    assert shown[0].is_whole


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_batch_without_rows_is_not_shown(mode: str) -> None:
    shown: list[Rows] = []
    streamed(shown, mode, None)._take(Frame([]), 0)
    assert shown == []


@pytest.mark.proves("D3", part="moldau sql")
@pytest.mark.parametrize("mode", ["append", "update"])
def test_large_batch_is_shown_completely_in_chunks(mode: str) -> None:
    shown: list[Rows] = []
    rows = [(number,) for number in range(2 * ROWS_AT_ONCE + 5)]
    streamed(shown, mode, None)._take(Frame(rows), 0)
    assert [len(each.rows) for each in shown] == [ROWS_AT_ONCE, ROWS_AT_ONCE, 5]
    assert [row for each in shown for row in each.rows] == rows
    limited: list[Rows] = []
    streamed(limited, mode, ROWS_AT_ONCE + 1)._take(Frame(rows), 0)
    assert [len(each.rows) for each in limited] == [ROWS_AT_ONCE, 1]


@pytest.mark.proves("D3", part="moldau sql")
@pytest.mark.parametrize(("count", "is_cut"), [(TABLE_ROWS_MAX, False), (TABLE_ROWS_MAX + 1, True)])
def test_truncated_table_is_reported(count: int, is_cut: bool, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[Rows] = []
    streamed(shown, "complete", None)._take(Frame([(number,) for number in range(count)]), 0)
    assert [(len(each.rows), each.is_cut) for each in shown] == [(TABLE_ROWS_MAX, is_cut)]
    for limit in (None, TABLE_ROWS_MAX):
        QueryRun("", Tables(bootstrap_servers=""), {}, limit, None, {}, is_json=True)._show_more(shown[0])
        message = capsys.readouterr().err
        assert message == (
            "showing 10000 rows of the table, there are more: see --limit\n" if is_cut and not limit else ""
        )


def query_run(*, is_json: bool) -> QueryRun:
    return QueryRun("", Tables(bootstrap_servers=""), {}, None, None, {}, is_json=is_json)


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local time zone other than UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.proves("D3", part="moldau sql")
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_timestamps_are_utc_in_any_local_time_zone(mode: str, new_york: None) -> None:
    del new_york
    time_type, number = TimestampType(), IntegerType()
    schema = (
        StructType()
        .add("at", time_type)
        .add("local", TimestampNTZType())
        .add("in", ArrayType(time_type))
        .add("by", MapType(time_type, number))
        .add("of", StructType().add("n", number).add("at", time_type))
    )
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    at = Decimal("1767225600.000000")
    shown: list[Rows] = []
    rows = [(at, "2026-01-01 00:00:00", [at, None], {at: 1}, Row(n=1, at=at)), (None,) * 5]
    streamed(shown, mode, None)._take(Frame(rows, schema), 0)
    ((whole, empty),) = (each.rows for each in shown)
    assert [each.tzinfo for each in (whole[0], whole[2][0], *whole[3], whole[4].at)] == [UTC] * 4
    assert whole == (midnight, datetime(2026, 1, 1), [midnight, None], {midnight: 1}, Row(n=1, at=midnight))
    assert empty == (None,) * 5


@pytest.mark.proves("D3", part="moldau sql")
@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31, 23, 59, 59, 999_999)))
def test_timestamps_equal_those_of_python_and_extend_its_range(at: datetime) -> None:
    at = at.replace(tzinfo=UTC)
    seconds = Decimal((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)).scaleb(-6)
    assert moment(seconds) == at
    cycles = Decimal(146_097 * 86_400)
    assert moment(seconds + 25 * cycles) == f"+{at.year + 10_000}{at.isoformat()[4:]}"
    assert moment(seconds - 25 * cycles) == (f"{at.year - 10_000:05d}" + at.isoformat()[4:])


def test_year_0_has_no_sign() -> None:
    assert moment(Decimal(-62_167_219_200)) == "0000-01-01T00:00:00+00:00"


@pytest.mark.proves("D3", part="moldau sql")
def test_every_column_type_is_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    row = (datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), timedelta(hours=1), Decimal("1.50"), b"x", None, True)
    names = ("at", "day", "took", "price", "raw", "none", "well")
    query_run(is_json=True)._show(names, [row])
    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-01-01T00:00:00+00:00",
        "day": "2026-01-01",
        "took": "1:00:00",
        "price": "1.50",
        "raw": "x",
        "none": None,
        "well": True,
    }


def test_columns_of_the_same_name_are_numbered_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    query_run(is_json=True)._show(("page", "page", "page_2", "page"), [("/a", "/b", "/c", "/d")])
    assert json.loads(capsys.readouterr().out) == {"page": "/a", "page_3": "/b", "page_2": "/c", "page_4": "/d"}


@pytest.mark.proves("D3", part="moldau sql")
def test_failure_to_show_rows_ends_the_stream() -> None:
    def show(rows: Rows) -> None:
        raise BrokenPipeError(rows.mode)

    result = StreamedQuery(show, ("append",))
    result._take(Frame([(1,)]), 0)
    assert result.is_done
    assert isinstance(result._failure, BrokenPipeError)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([SORTED, NO_AGGREGATE], "a stream cannot be sorted"),
        (["[X] Something else is wrong.", NO_AGGREGATE], "Something else is wrong."),
        ([NO_AGGREGATE], "Invalid streaming output mode: complete"),
    ],
)
def test_streaming_error_names_the_cause_in_the_query(errors: list[str], reason: str) -> None:
    assert explain_rejection(errors).startswith(f"this query cannot be streamed: {reason}")


def test_stream_rejects_until_end() -> None:
    result = CliRunner().invoke(app, ["sql", "select 1", "--stream", "--until", "end"])
    assert result.exit_code == 2
    assert "cannot be combined" in result.stderr
