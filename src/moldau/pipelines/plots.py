"""Plots as self-contained SVG and HTML, without scripts or external fonts."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 760
_HEIGHT: Final = 190
_LEFT: Final = 58
_TOP: Final = 10
_BELOW: Final = 26
_ROW: Final = 20
_LABELS_MAX: Final = 7
_NICE: Final = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Share:
    """A name and a count."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Series:
    """A name and a count per time step."""

    name: str
    counts: Sequence[int]


def text(value: str) -> str:
    return html.escape(value)


def bars(times: Sequence[str], counts: Sequence[int]) -> str:
    """Draw a bar chart over time with grid lines."""
    top = ceiling(max(counts, default=0))
    step = (WIDTH - _LEFT) / max(len(counts), 1)
    grid = "".join(_grid_line(top * part // 4, top) for part in range(5) if top * part % 4 == 0)
    drawn = "".join(
        _rect(_LEFT + number * step, _y(count, top), step, _HEIGHT - _y(count, top), f"{time}: {count:,}")
        for number, (time, count) in enumerate(zip(times, counts, strict=True))
        if count
    )
    return _svg(_HEIGHT + _BELOW, grid + drawn + _time_labels(times, step, _HEIGHT))


def heat(times: Sequence[str], series: Sequence[Series]) -> str:
    """Draw a heat map with a row per series; all rows share one scale."""
    top = max((max(each.counts, default=0) for each in series), default=0) or 1
    step = (WIDTH - _LEFT) / max(len(times), 1)
    height = _TOP + _ROW * len(series)
    drawn = []
    for row, each in enumerate(series):
        y = _TOP + row * _ROW
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{text(each.name)}</text>')
        drawn += [
            _rect(_LEFT + number * step, y, step, _ROW - 3, f"{each.name}, {time}: {count:,}", max(count / top, 0.06))
            for number, (time, count) in enumerate(zip(times, each.counts, strict=True))
            if count
        ]
    return _svg(height + _BELOW, "".join(drawn) + _time_labels(times, step, height))


def ranking(shares: Sequence[Share], total: int, is_hot: Callable[[Share], bool] = lambda _: False) -> str:
    """Draw a table with a bar in each row, scaled to the largest share."""
    if not shares:
        return "<p>None.</p>"
    top = max(max(each.count for each in shares), 1)
    rows = "".join(
        f"<tr{' class=hot' if is_hot(each) else ''}><th>{text(each.name)}</th>"
        f'<td class="bar"><i style="width:{100 * each.count / top:.1f}%"></i></td>'
        f'<td class="n">{each.count:,}</td><td class="n quiet">{each.count / total if total else 0:.1%}</td></tr>'
        for each in shares
    )
    return f"<table>{rows}</table>"


def ceiling(count: int) -> int:
    """Round up to a number whose quarters are round: 4, 8, 20, 40 …"""
    scale = 1
    while True:
        for nice in _NICE:
            if 4 * nice * scale >= count:
                return 4 * nice * scale
        scale *= 10


def _y(count: int, top: int) -> float:
    return _HEIGHT - (_HEIGHT - _TOP) * count / top


def _grid_line(count: int, top: int) -> str:
    y = _y(count, top)
    return (
        f'<line x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>'
    )


def _time_labels(times: Sequence[str], step: float, y: float) -> str:
    """Draw a few time labels below their columns; without the date if all are on the same day."""
    is_one_day = len({time[:10] for time in times}) <= 1
    every = -(-len(times) // _LABELS_MAX) or 1
    return "".join(
        f'<text x="{_LEFT + number * step:.1f}" y="{y + 17:.1f}">{text(_short(times[number], is_one_day))}</text>'
        for number in range(0, len(times), every)
        if _LEFT + number * step < WIDTH - 60 or number == 0
    )


def _short(time: str, is_one_day: bool) -> str:
    return time[11:].removesuffix(":00") if is_one_day else time[5:16]


def _rect(x: float, y: float, step: float, height: float, title: str, opacity: float = 1.0) -> str:
    faded = f' fill-opacity="{opacity:.2f}"' if opacity < 1 else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(step - 1, 0.7):.1f}" height="{height:.1f}"{faded}>'
        f"<title>{text(title)}</title></rect>"
    )


def _svg(height: float, content: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{content}</svg>'
