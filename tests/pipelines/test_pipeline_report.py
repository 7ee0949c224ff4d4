"""The activity report: one self-contained page, replaced atomically, and refreshed while the pipeline runs."""

import logging
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from moldau.pipelines.plots import Series, Share, bars, ceiling, ranking
from moldau.pipelines.report import ROWS_MAX, Report, report_html
from moldau.pipelines.report_figures import in_words, moment, step_of
from moldau.pipelines.report_refresh import Refresh, write_report


def report(**changes: object) -> Report:
    fields = {
        "title": "Activity of <clicks>",
        "made_at": "2026-01-02 00:00:00",
        "first": "2026-01-01 00:00:00",
        "last": "2026-01-01 01:00:00",
        "events": 100,
        "users": 7,
        "step": "minute",
        "times": ["2026-01-01 00:00:00", "2026-01-01 00:01:00"],
        "by_partition": [Series("0", [40, 30]), Series("1", [20, 0]), Series("2", [0, 10])],
        "by_kind": [Share("view", 90), Share("purchase", 10)],
        "pages": [Share("/<script>", 100)],
        "sessions": 9,
        "session_lengths": [Share("at once", 4), Share("1 min", 5)],
        "keys": [Share("user-0", 20), Share("user-1", 5), Share("user-2", 3)],
        "dead_letters": [Share("user is missing", 3)],
        "dead_letter_count": 4,
    }
    return Report(**{**fields, **changes})  # type: ignore[arg-type]


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attributes}
        self.seen[tag] += 1
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.proves("D3", part="the report")
def test_report_is_one_self_contained_page() -> None:
    page = report_html(report())
    tags = Tags(page)
    assert not tags.open
    assert tags.seen["svg"] == 2
    assert tags.seen["table"] == 6
    assert tags.seen["script"] == tags.seen["link"] == tags.seen["img"] == 0
    assert not re.search(r"https?:|url\(|@import", page)
    assert "Activity of &lt;clicks&gt;" in page
    assert "/&lt;script&gt;" in page


@pytest.mark.proves("T3")
def test_hot_keys_and_skew_are_highlighted() -> None:
    assert [each.name for each in report().hot_keys] == ["user-0"]
    assert report().skew == pytest.approx(2.1)
    page = report_html(report())
    assert '<p class="warn">More than 5% of all records: user-0.' in page
    assert '<p class="warn">The largest has 2.10 times the mean.' in page
    assert page.count("<tr class=hot>") == 2
    even = report_html(report(keys=[Share("user-1", 5)], by_partition=[Series("0", [25, 25]), Series("1", [50, 0])]))
    assert 'class="warn"' not in even
    assert "class=hot" not in even
    assert "No key has more than 5% of all records." in even


def test_events_by_time_are_summed_over_partitions() -> None:
    assert report().by_time == [60, 40]
    assert report().partitions == [Share("0", 70), Share("1", 20), Share("2", 10)]
    page = report_html(report())
    assert "<title>2026-01-01 00:00:00: 60</title>" in page
    assert "<title>0, 2026-01-01 00:01:00: 30</title>" in page


def test_totals_include_unlisted_rows() -> None:
    page = report_html(report(late=17))
    assert "<div><b>4</b>dead letters</div>" in page
    assert "<div><b>17</b>dropped as late</div>" in page


def test_empty_report_is_a_valid_page() -> None:
    lists = "times by_kind by_partition pages session_lengths keys dead_letters"
    nothing: dict[str, object] = {name: [] for name in lists.split()}
    page = report_html(report(events=0, **nothing))
    assert not Tags(page).open
    assert page.count("None.") == 7


def test_list_of_partitions_is_truncated() -> None:
    page = report_html(report(by_partition=[Series(str(number), [1, 1]) for number in range(1000)]))
    assert f"and {1000 - ROWS_MAX} more" in page


def test_only_a_live_report_refreshes_itself() -> None:
    assert 'http-equiv="refresh"' in report_html(report(is_live=True))
    assert 'http-equiv="refresh"' not in report_html(report())


@pytest.mark.parametrize(("count", "top"), [(0, 4), (4, 4), (5, 8), (9, 20), (21, 40), (41, 80), (4001, 8000)])
def test_axes_end_at_round_numbers(count: int, top: int) -> None:
    assert ceiling(count) == top


def test_bars_stay_within_their_plot() -> None:
    plot = bars([moment(each) for each in range(120)], list(range(120)))
    for x, y, width, height in re.findall(r'<rect x="(.+?)" y="(.+?)" width="(.+?)" height="(.+?)"', plot):
        assert 0 <= float(x) <= float(x) + float(width) <= 760
        assert 0 <= float(y) <= float(y) + float(height) <= 190.1


def test_names_are_escaped() -> None:
    assert "<b>" not in ranking([Share("<b>", 1)], 1)


@pytest.mark.parametrize(
    ("span_s", "step_s", "words"),
    [
        (0, 1, "second"),
        (119, 1, "second"),
        (120, 2, "2 seconds"),
        (3600, 60, "minute"),
        (5 * 3600, 300, "5 minutes"),
        (9 * 86_400, 7200, "2 hours"),
        (121 * 86_400, 2 * 86_400, "2 days"),
    ],
)
def test_time_axis_has_round_steps(span_s: int, step_s: int, words: str) -> None:
    assert step_of(span_s) == step_s
    assert in_words(step_s) == words
    assert span_s // step_s <= 120


def test_report_file_is_replaced_atomically(tmp_path: Path) -> None:
    place = tmp_path / "new" / "report.html"
    write_report(place, report())
    write_report(place, report(title="Later"))
    assert "<h1>Later</h1>" in place.read_text()
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.proves("D3", part="the report")
def test_report_refresh_takes_at_most_a_tenth_of_the_time(caplog: pytest.LogCaptureFixture) -> None:
    now_s, made_at = 0.0, []

    def write(_: object) -> None:
        nonlocal now_s
        made_at.append(now_s)
        now_s += 2 if len(made_at) == 1 else 20
        if len(made_at) == 2:
            raise RuntimeError("the lake is closed")

    refresh = Refresh(write, 60, lambda: now_s)
    with caplog.at_level(logging.WARNING):
        while now_s < 400:
            refresh(None)
            now_s += 1
    assert made_at == [60, 122, 322]
    assert "report not refreshed, retrying later: the lake is closed" in caplog.text
