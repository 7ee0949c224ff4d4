"""The page of a check: records, violations by rule, lag; one self-contained HTML file."""

from collections.abc import Mapping, Sequence

from moldau.pipelines.plots import Share, ranking, text
from moldau.pipelines.progress import Progress
from moldau.pipelines.report import page_of, section


def check_page(topic: str, rules: Sequence[str], progress: Progress | None, made_at: str) -> str:
    """Return the page for what a job has counted so far."""
    counts: Mapping[str, int] = {} if progress is None else progress.violations
    rows = 0 if progress is None else progress.rows_total
    shares = [Share(each, counts.get(each, 0)) for each in rules]
    broken = sum(1 for each in shares if each.count)
    figures = {
        "records": f"{rows:,}",
        "violations": f"{sum(each.count for each in shares):,}",
        "rules violated": f"{broken} of {len(shares)}",
        "lag": f"{0 if progress is None else progress.lag_total:,}",
    }
    shown = "".join(f"<div><b>{value}</b>{text(name)}</div>" for name, value in figures.items())
    parts = [
        f"<h1>Quality of {text(topic)}</h1>",
        f'<p class="quiet">generated {text(made_at)} UTC</p>',
        f'<div class="figures">{shown}</div>',
        section(
            "Violations by rule, and their share of all records", ranking(shares, rows, lambda each: each.count > 0)
        ),
    ]
    return page_of(f"Quality of {topic}", parts)
