"""A query that goes on, without Spark: when it has shown enough, and why some queries cannot."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.cli.sql import Question
from moldau.pipelines.asking import ROWS_AT_ONCE, TABLE_ROWS_MAX, Rows, Streamed, why_not
from moldau.pipelines.tables import Tables

SORTED = "Sorting is not supported on streaming DataFrames/Datasets, unless it is on aggregated DataFrame/Dataset"
NO_AGGREGATE = "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: complete. SQLSTATE: 42KDE"


@dataclass
class Frame:
    """The rows of a batch."""

    rows: list[tuple[int]]
    columns = ("n",)

    def limit(self, count: int) -> "Frame":
        return Frame(self.rows[:count])

    def toLocalIterator(self) -> Iterator[tuple[int]]:  # noqa: N802
        return iter(self.rows)


def streamed(shown: list[Rows], mode: str, rows_max: int | None) -> Streamed:
    made = Streamed(shown.append, (mode,), rows_max)
    made._mode = mode
    return made


@pytest.mark.proves("D3", part="moldau sql")
def test_a_stream_ends_after_as_many_rows_as_were_wanted() -> None:
    shown: list[Rows] = []
    answer = streamed(shown, "append", 3)
    answer._take(Frame([(1,), (2,)]), 0)
    assert not answer.is_done
    answer._take(Frame([(3,), (4,)]), 1)
    answer._take(Frame([(5,)]), 2)
    assert answer.is_done
    assert [each.rows for each in shown] == [[(1,), (2,)], [(3,)]]


def test_a_table_that_is_shown_again_and_again_has_as_many_rows_each_time() -> None:
    shown: list[Rows] = []
    answer = streamed(shown, "complete", 2)
    for batch in range(3):
        answer._take(Frame([(1,), (2,), (3,)]), batch)
    assert not answer.is_done
    assert [each.rows for each in shown] == [[(1,), (2,)]] * 3
    assert shown[0].is_whole


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_batch_without_rows_is_not_shown(mode: str) -> None:
    shown: list[Rows] = []
    streamed(shown, mode, None)._take(Frame([]), 0)
    assert shown == []


@pytest.mark.proves("D3", part="moldau sql")
@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_batch_that_makes_more_rows_than_it_has_read_is_shown_whole_a_piece_at_a_time(mode: str) -> None:
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
def test_a_table_that_is_cut_says_so(count: int, is_cut: bool, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[Rows] = []
    streamed(shown, "complete", None)._take(Frame([(number,) for number in range(count)]), 0)
    assert [(len(each.rows), each.is_cut) for each in shown] == [(TABLE_ROWS_MAX, is_cut)]
    for limit in (None, TABLE_ROWS_MAX):
        Question("", Tables(bootstrap_servers=""), {}, limit, None, {}, is_json=True)._show_more(shown[0])
        said = capsys.readouterr().err
        assert said == ("the table has more than these 10000 rows: see --limit\n" if is_cut and not limit else "")


@pytest.mark.proves("D3", part="moldau sql")
def test_whoever_cannot_show_rows_ends_the_stream() -> None:
    def show(rows: Rows) -> None:
        raise BrokenPipeError(rows.mode)

    answer = Streamed(show, ("append",))
    answer._take(Frame([(1,)]), 0)
    assert answer.is_done
    assert isinstance(answer._failure, BrokenPipeError)


@pytest.mark.parametrize(
    ("refusals", "says"),
    [
        ([SORTED, NO_AGGREGATE], "a stream has no end, so that its rows cannot be sorted"),
        (["[X] Something else is wrong.", NO_AGGREGATE], "Something else is wrong."),
        ([NO_AGGREGATE], "Invalid streaming output mode: complete"),
    ],
)
def test_why_a_query_cannot_be_streamed_is_what_says_something_of_the_query(refusals: list[str], says: str) -> None:
    assert why_not(refusals).startswith(f"this query cannot be streamed: {says}")


def test_a_stream_has_no_end() -> None:
    result = CliRunner().invoke(app, ["sql", "select 1", "--stream", "--until", "end"])
    assert result.exit_code == 2
    assert "a stream has no end" in result.stderr
