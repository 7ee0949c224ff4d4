"""The activity report: one page that needs nothing else; the flows of the pipeline; the clickstream that feeds it."""

import importlib.util
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from moldau.pipelines.activity import Activity
from moldau.pipelines.report import BARS_MAX, Report, Share, merged, report_html

ACTIVITY = Activity(name="a", bootstrap_servers="here:9092", topic="clicks", out="clicks.activity", lake="/lake")


def report(**changes: object) -> Report:
    fields = {
        "title": "Activity of <clicks>",
        "made_at": "2026-01-02T00:00:00Z",
        "first": "2026-01-01 00:00:00",
        "last": "2026-01-01 01:00:00",
        "events": 100,
        "users": 7,
        "by_window": [Share("00:00", 60), Share("00:01", 40)],
        "by_kind": [Share("view", 90), Share("purchase", 10)],
        "pages": [Share("/<script>", 100)],
        "sessions": 9,
        "session_lengths": [Share("at once", 4), Share("1 min", 5)],
        "keys": [Share("user-0", 20), Share("user-1", 5), Share("user-2", 3)],
        "partitions": [Share("0", 70), Share("1", 20), Share("2", 10)],
        "dead_letters": [Share("user is missing", 3)],
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


@pytest.mark.proves("D3")
def test_the_report_is_one_page_that_asks_nobody() -> None:
    page = report_html(report())
    tags = Tags(page)
    assert not tags.open
    assert tags.seen["svg"] == 3
    assert tags.seen["script"] == 0
    assert not re.search(r"https?:|url\(|@import", page)
    assert "Activity of &lt;clicks&gt;" in page


def test_hot_keys_and_skew_stand_out() -> None:
    assert [each.name for each in report().hot_keys] == ["user-0"]
    assert report().skew == pytest.approx(2.1)
    page = report_html(report())
    assert '<p class="warn">user-0: more than 5% of all records each.' in page
    assert '<p class="warn">The largest has 2.10 times the mean.' in page
    assert '<rect class="hot"' in page
    even = report_html(report(keys=[Share("user-1", 5)], partitions=[Share("0", 50), Share("1", 50)]))
    assert 'class="warn"' not in even
    assert "No key has more than 5% of all records." in even


def test_a_report_of_nothing_is_a_page_too() -> None:
    lists = "by_window by_kind pages session_lengths keys partitions dead_letters"
    nothing: dict[str, object] = {name: [] for name in lists.split()}
    page = report_html(report(events=0, **nothing))
    assert not Tags(page).open
    assert page.count("None.") == 7


def test_many_bars_become_few_and_lose_nothing() -> None:
    shares = [Share(str(number), number) for number in range(1001)]
    shown = merged(shares, BARS_MAX)
    assert len(shown) <= BARS_MAX
    assert sum(each.count for each in shown) == sum(range(1001))
    assert merged([], 5) == []


def test_every_part_has_a_name_a_group_and_a_checkpoint_of_its_own() -> None:
    parts = ACTIVITY.parts()
    assert [each.name for each in parts] == ["a-clean", "a-counts", "a-sessions", "a-load", "a-lake"]
    assert len({ACTIVITY.checkpoint_of(each, "/c") for each in parts}) == len(parts)
    assert len({each.source.group for each in parts}) == len(parts)
    for part in parts:
        compile(part.script(master=None, checkpoint="/c", once=False), part.name, "exec")


def clickstream() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "activity" / "clickstream.py"
    spec = importlib.util.spec_from_file_location("clickstream", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["clickstream"] = module
    spec.loader.exec_module(module)
    return module


def test_a_clickstream_has_skew_late_events_repetitions_and_broken_ones() -> None:
    made = clickstream()
    records = list(made.events(20_000, 3, 1_700_000_000_000, made.Mix()))
    assert records == list(made.events(20_000, 3, 1_700_000_000_000, made.Mix()))
    good = []
    for key, value, time_ms in records:
        if key is not None:
            good.append((json.loads(value), time_ms))
    ids = Counter(event["event_id"] for event, _ in good)
    users = Counter(event["user"] for event, _ in good)
    assert 50 < len(records) - len(good) < 150
    assert 100 < sum(count - 1 for count in ids.values()) < 300
    assert 0.15 < users["user-0"] / len(good) < 0.25
    assert any(time_ms - int(event["at"]) > 200_000 for event, time_ms in good)
