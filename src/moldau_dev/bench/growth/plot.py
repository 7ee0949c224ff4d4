"""Cost against size as small multiples in one SVG: logarithmic sizes, each curve with its own scale."""

import html
import math
from collections.abc import Sequence
from typing import Final

from moldau_dev.bench.growth.curve import Curve

WIDTH: Final = 240
HEIGHT: Final = 90
LEFT: Final = 16
TOP: Final = 34
GAP: Final = 36
COLUMNS: Final = 3
_STYLE: Final = (
    "text{font:11px system-ui,sans-serif;fill:#555}.name{fill:#111}"
    ".line{fill:none;stroke:#1f6f8b;stroke-width:2}.limit{stroke:#b33;stroke-dasharray:4 3}.axis{stroke:#bbb}"
)


def draw(curves: Sequence[Curve]) -> str:
    """Draw all curves."""
    rows = -(-len(curves) // COLUMNS)
    cell_width, cell_height = WIDTH + 2 * LEFT + GAP, HEIGHT + TOP + GAP
    cells = "".join(
        f'<g transform="translate({column * cell_width},{row * cell_height})">{_cell(curve)}</g>'
        for (row, column), curve in ((divmod(number, COLUMNS), curve) for number, curve in enumerate(curves))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * cell_width} {rows * cell_height}">'
        f"<style>{_STYLE}</style>{cells}</svg>\n"
    )


def _cell(curve: Curve) -> str:
    sizes = sorted(curve.costs)
    top = 1.15 * max(max(curve.costs.values()), curve.limit or 0.0) or 1.0
    points = [(_x(size, sizes), _y(curve.costs[size], top)) for size in sizes]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    labels = "".join(
        f'<text x="{x:.1f}" y="{y - 6:.1f}" text-anchor="middle">{curve.costs[size]:.3g}</text>'
        f'<text x="{x:.1f}" y="{TOP + HEIGHT + 14}" text-anchor="middle">{size:,}</text>'
        for size, (x, y) in zip(sizes, points, strict=True)
    )
    limit = ""
    if curve.limit is not None:
        y = _y(curve.limit, top)
        limit = f'<line class="limit" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}"/>'
    return (
        f'<text class="name" x="{LEFT}" y="12">{html.escape(curve.name)}, {html.escape(curve.unit)}</text>'
        f'<line class="axis" x1="{LEFT}" y1="{TOP + HEIGHT}" x2="{LEFT + WIDTH}" y2="{TOP + HEIGHT}"/>'
        f'{limit}<polyline class="line" points="{path}"/>{labels}'
        f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 27}" text-anchor="end">{html.escape(curve.of)}</text>'
    )


def _x(size: int, sizes: Sequence[int]) -> float:
    low, high = math.log(sizes[0]), math.log(sizes[-1])
    return LEFT + 20 + (WIDTH - 40) * (math.log(size) - low) / ((high - low) or 1)


def _y(cost: float, top: float) -> float:
    return TOP + HEIGHT * (1 - cost / top)
