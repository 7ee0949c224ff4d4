"""The activity report: a self-contained HTML file with inline plots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moldau.pipelines.plots import Series, Share, bars, heat, ranking, text

HOT_SHARE: Final = 0.05  # of all records: a key above it can make a partition hot
SKEWED: Final = 1.5  # ratio of the largest partition to the mean
ROWS_MAX: Final = 64
LIVE_RELOAD_S: Final = 30
_STYLE: Final = """
:root{--ink:#1b2430;--quiet:#66707c;--line:#e4e8ec;--page:#f4f6f8;--card:#fff;--bar:#2f6f9f;--hot:#c0542f}
@media(prefers-color-scheme:dark){:root{--ink:#dde3ea;--quiet:#95a0ab;--line:#2b333c;--page:#101419;--card:#181e25;
--bar:#5b9fd0;--hot:#e07b52}}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:2rem 1rem 4rem;
color:var(--ink);background:var(--page)}h1{font-size:1.7rem;margin:0}h2{font-size:1rem;margin:0 0 .6rem}
p{margin:.2rem 0}
.figures,.pair{display:grid;gap:1rem;margin-top:1rem}.figures{grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr))}
.pair{grid-template-columns:repeat(auto-fit,minmax(22rem,1fr))}
section,.figures div{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:1rem 1.2rem}
section{margin-top:1rem}.pair section{margin-top:0}.figures b{display:block;font-size:1.6rem;line-height:1.2}
.quiet,.figures div{color:var(--quiet)}.figures b{color:var(--ink)}.warn{color:var(--hot)}
table{border-collapse:collapse;width:100%}th,td{padding:.15rem .5rem .15rem 0;font-weight:normal;text-align:left}
th{white-space:nowrap;max-width:16rem;overflow:hidden;text-overflow:ellipsis}td.n{text-align:right;
font-variant-numeric:tabular-nums;white-space:nowrap}th,td.n{width:1%}td.bar i{display:block;height:.7rem;
background:var(--bar);border-radius:2px}tr.hot i{background:var(--hot)}
svg{width:100%;height:auto;display:block}rect{fill:var(--bar)}line{stroke:var(--line)}text{font-size:11px;
fill:var(--quiet)}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures of a report. Lists are in display order; times are in UTC."""

    title: str
    made_at: str
    first: str
    last: str
    events: int
    users: int
    step: str  # of `times`, in words
    times: Sequence[str]
    by_partition: Sequence[Series]
    by_kind: Sequence[Share]
    pages: Sequence[Share]
    sessions: int
    session_lengths: Sequence[Share]
    keys: Sequence[Share]
    dead_letters: Sequence[Share]
    dead_letter_count: int  # in total
    late: int = 0
    is_live: bool = False

    @property
    def by_time(self) -> list[int]:
        return [sum(counts) for counts in zip(*(each.counts for each in self.by_partition), strict=True)]

    @property
    def partitions(self) -> list[Share]:
        return [Share(each.name, sum(each.counts)) for each in self.by_partition]

    @property
    def hot_keys(self) -> list[Share]:
        """Keys whose share of all records is large enough to skew their partition."""
        return [each for each in self.keys if self._is_hot(each)]

    @property
    def skew(self) -> float:
        """Ratio of the largest partition to the mean; 1 is even."""
        counts = [each.count for each in self.partitions]
        return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0

    def _is_hot(self, key: Share) -> bool:
        return bool(self.events) and key.count / self.events > HOT_SHARE


def report_html(report: Report) -> str:
    parts = [
        f"<h1>{text(report.title)}</h1>",
        f'<p class="quiet">{_when(report)}</p>',
        _figures(report),
        section(f"Events per {text(report.step)}", _over_time(report)),
        _pair(
            section("Kinds", ranking(report.by_kind, report.events)),
            section("Pages", ranking(report.pages, report.events)),
        ),
        section("Partitions of the raw topic", _partitions(report)),
        _pair(
            section("Keys with the most records", _hot_keys(report)),
            section("Lengths of sessions", ranking(report.session_lengths, report.sessions)),
        ),
        section("Dead letters, by reason", ranking(report.dead_letters, report.dead_letter_count)),
    ]
    reload = LIVE_RELOAD_S if report.is_live else None
    return page_of(report.title, parts, reload)


def page_of(title: str, parts: Sequence[str], reload_s: int | None = None) -> str:
    """Return a self-contained page in the style of all reports."""
    reload = f'<meta http-equiv="refresh" content="{reload_s}">' if reload_s else ""
    head = f'<meta charset="utf-8">{reload}<meta name="viewport" content="width=device-width">'
    head += f"<title>{text(title)}</title><style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _when(report: Report) -> str:
    span = f"{text(report.first)} to {text(report.last)} UTC; " if report.events else ""
    live = "; the pipeline is running, and this page reloads itself" if report.is_live else ""
    return f"{span}generated {text(report.made_at)} UTC{live}"


def _figures(report: Report) -> str:
    figures = {
        "events": report.events,
        "users": report.users,
        "sessions": report.sessions,
        "dead letters": report.dead_letter_count,
        "dropped as late": report.late,
    }
    return '<div class="figures">' + "".join(f"<div><b>{n:,}</b>{name}</div>" for name, n in figures.items()) + "</div>"


def _over_time(report: Report) -> str:
    return bars(report.times, report.by_time) if report.events else "<p>None.</p>"


def _partitions(report: Report) -> str:
    if not report.events:
        return "<p>None.</p>"
    kind = ' class="warn"' if report.skew > SKEWED else ""
    said = f"<p{kind}>The largest has {report.skew:.2f} times the mean.</p>"
    mean = report.events / max(len(report.partitions), 1)
    table = ranking(report.partitions[:ROWS_MAX], report.events, lambda each: each.count > mean * SKEWED)
    more = len(report.partitions) - ROWS_MAX
    rest = f'<p class="quiet">and {more:,} more</p>' if more > 0 else ""
    return said + table + rest + heat(report.times, report.by_partition[:ROWS_MAX])


def _hot_keys(report: Report) -> str:
    hot = report.hot_keys
    if hot:
        names = ", ".join(text(each.name) for each in hot)
        said = f'<p class="warn">More than {HOT_SHARE:.0%} of all records: {names}. Salt such keys to spread them.</p>'
    else:
        said = f"<p>No key has more than {HOT_SHARE:.0%} of all records.</p>"
    return said + ranking(report.keys, report.events, lambda each: each in hot)


def section(title: str, content: str) -> str:
    """Return a section of a report."""
    return f"<section><h2>{title}</h2>\n{content}</section>"


def _pair(left: str, right: str) -> str:
    return f'<div class="pair">{left}{right}</div>'
