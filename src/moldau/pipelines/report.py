"""The activity report: one HTML file with its plots inside, that needs nothing else and asks nobody."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WIDTH: Final = 720
_HEIGHT: Final = 180
BARS_MAX: Final = 240
HOT_SHARE: Final = 0.05  # of all records: a key above it can make a partition hot
SKEWED: Final = 1.5  # the largest partition beside the mean of all
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b2430;background:#fff}
h1{font-size:1.6rem;margin-bottom:0}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left}td.n{text-align:right}
.figures{display:flex;gap:2rem;flex-wrap:wrap;margin-top:1rem}.figures b{display:block;font-size:1.5rem}
.warn{color:#a33}.quiet{color:#667}svg{width:100%;height:auto}rect{fill:#2f6f9f}rect.hot{fill:#c0542f}
text{font-size:11px;fill:#556}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde3ea}text{fill:#9aa}.quiet{color:#9aa}}
"""


@dataclass(frozen=True, slots=True)
class Share:
    """A name and how many of something it has."""

    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures of a report. Lists are in the order in which they are shown."""

    title: str
    made_at: str
    first: str
    last: str
    events: int
    users: int
    by_window: Sequence[Share]
    by_kind: Sequence[Share]
    pages: Sequence[Share]
    sessions: int
    session_lengths: Sequence[Share]
    keys: Sequence[Share]
    partitions: Sequence[Share]
    dead_letters: Sequence[Share]

    @property
    def hot_keys(self) -> list[Share]:
        """Keys with so large a part of all records that the partition they are in stands out."""
        return [each for each in self.keys if self.events and each.count / self.events > HOT_SHARE]

    @property
    def skew(self) -> float:
        """The largest partition beside the mean: 1 is even."""
        counts = [each.count for each in self.partitions]
        return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0


def report_html(report: Report) -> str:
    refused = sum(each.count for each in report.dead_letters)
    figures = [
        ("events", report.events),
        ("users", report.users),
        ("sessions", report.sessions),
        ("dead letters", refused),
    ]
    parts = [
        f"<h1>{_text(report.title)}</h1>",
        f'<p class="quiet">{_text(report.first)} to {_text(report.last)}; made {_text(report.made_at)}</p>',
        '<div class="figures">' + "".join(f"<div><b>{count:,}</b>{name}</div>" for name, count in figures) + "</div>",
        _section("Events over time", _bars(report.by_window)),
        _section("Kinds", _table(report.by_kind, report.events)),
        _section("Pages", _table(report.pages, report.events)),
        _section("Lengths of sessions", _bars(report.session_lengths)),
        _section("Hot keys", _hot_keys(report)),
        _section("Partitions", _partitions(report)),
        _section("Dead letters", _table(report.dead_letters, refused) if refused else "<p>None.</p>"),
    ]
    head = f'<meta charset="utf-8"><title>{_text(report.title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _hot_keys(report: Report) -> str:
    hot = report.hot_keys
    if hot:
        names = ", ".join(_text(each.name) for each in hot)
        said = f'<p class="warn">{names}: more than {HOT_SHARE:.0%} of all records each. Salt them, or spread them.</p>'
    else:
        said = f"<p>No key has more than {HOT_SHARE:.0%} of all records.</p>"
    return said + _table(report.keys, report.events)


def _partitions(report: Report) -> str:
    kind = ' class="warn"' if report.skew > SKEWED else ""
    said = f"<p{kind}>The largest has {report.skew:.2f} times the mean.</p>"
    mean = sum(each.count for each in report.partitions) / max(len(report.partitions), 1)
    return said + _bars(report.partitions, hot_above=mean * SKEWED)


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}"


def _table(shares: Sequence[Share], total: int) -> str:
    rows = "".join(
        f'<tr><td>{_text(each.name)}</td><td class="n">{each.count:,}</td>'
        f'<td class="n">{each.count / total if total else 0:.1%}</td></tr>'
        for each in shares
    )
    return f"<table>{rows}</table>" if rows else "<p>None.</p>"


def _bars(shares: Sequence[Share], hot_above: float = float("inf")) -> str:
    shown = merged(shares, BARS_MAX)
    if not shown:
        return "<p>None.</p>"
    top = max(max(each.count for each in shown), 1)
    step = _WIDTH / len(shown)
    bars = "".join(_bar(each, number * step, step, top, each.count > hot_above) for number, each in enumerate(shown))
    ends = (
        f'<text x="0" y="{_HEIGHT + 16}">{_text(shown[0].name)}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{_text(shown[-1].name)}</text>'
        f'<text x="0" y="10">{top:,}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 22}" role="img">{bars}{ends}</svg>'


def _bar(share: Share, x: float, step: float, top: int, is_hot: bool) -> str:
    height = (_HEIGHT - 16) * share.count / top
    kind = ' class="hot"' if is_hot else ""
    return (
        f'<rect{kind} x="{x:.1f}" y="{_HEIGHT - height:.1f}" width="{max(step - 1, 0.5):.1f}" height="{height:.1f}">'
        f"<title>{_text(share.name)}: {share.count:,}</title></rect>"
    )


def merged(shares: Sequence[Share], count_max: int) -> list[Share]:
    """Neighbours together, until there are few enough; each goes by the name of its first."""
    step = -(-len(shares) // count_max) if shares else 1
    return [
        Share(shares[at].name, sum(each.count for each in shares[at : at + step])) for at in range(0, len(shares), step)
    ]


def _text(text: str) -> str:
    return html.escape(text)
