"""Progress of a pipeline after each batch, also as Prometheus text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Self

VIOLATIONS: Final = "violations"  # observed metrics of rules, by the rule's name
OBSERVED_ROWS: Final = "rows"  # metric that a query observes if Spark cannot count its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress after a batch of a query. `lag` is the number of unread records for each `topic-partition`.

    A pipeline of several queries has one `part` per query. `late` counts rows dropped behind the watermark.
    """

    batch: int
    at_ms: int
    rows: int
    rows_total: int
    rows_per_s: float
    batch_ms: int
    lag: Mapping[str, int] = field(default_factory=dict)
    late: int = 0
    late_total: int = 0
    part: str = ""
    violations: Mapping[str, int] = field(default_factory=dict)  # of rules, in total

    @property
    def lag_total(self) -> int:
        return sum(self.lag.values())

    @property
    def line(self) -> str:
        """One line for a terminal."""
        return (
            f"batch {self.batch} · {self.rows:,} rows · {self.rows_per_s:,.0f} rows/s · "
            f"lag {self.lag_total:,} · {self.batch_ms / 1000:.1f} s · {self.rows_total:,} in all"
            + (f" · {self.late_total:,} too late" if self.late_total else "")
            + (f" · {sum(self.violations.values()):,} violations" if self.violations else "")
        )

    def shape(self) -> dict[str, Any]:
        return {**asdict(self), "lag_total": self.lag_total}

    @classmethod
    def of_shape(cls, shape: Mapping[str, Any]) -> Self:
        return cls(**{name: shape[name] for name in cls.__dataclass_fields__ if name in shape})


def together(parts: Sequence[Progress]) -> Progress:
    """Combine the queries of a pipeline: rows of the first query, the largest lag per partition."""
    lag: dict[str, int] = {}
    for part in parts:
        for place, behind in part.lag.items():
            lag[place] = max(behind, lag.get(place, 0))
    at_ms = max(each.at_ms for each in parts)
    return replace(parts[0], part="", lag=lag, at_ms=at_ms)


def progress_of(
    event: Mapping[str, Any],
    rows_before: int,
    late_before: int = 0,
    part: str = "",
    violations_before: Mapping[str, int] | None = None,
) -> Progress:
    """Parse Spark's StreamingQueryProgress. `rows_before` is the total of earlier batches."""
    counted, late = int(event.get("numInputRows") or 0), _late(event.get("stateOperators") or ())
    rows, rate = _observed(event, counted), event.get("processedRowsPerSecond")
    return Progress(
        batch=int(event["batchId"]),
        at_ms=int(datetime.fromisoformat(event["timestamp"]).timestamp() * 1000),
        rows=rows,
        rows_total=rows_before + rows,
        rows_per_s=rate * rows / max(counted, 1) if isinstance(rate, int | float) else 0.0,
        batch_ms=int(event.get("batchDuration") or (event.get("durationMs") or {}).get("triggerExecution") or 0),
        lag=_lag(event.get("sources") or ()),
        late=late,
        late_total=late_before + late,
        part=part,
        violations=_violations(event, violations_before or {}),
    )


def _violations(event: Mapping[str, Any], before: Mapping[str, int]) -> dict[str, int]:
    """Return the violations of each rule in all batches."""
    found = (event.get("observedMetrics") or {}).get(VIOLATIONS) or {}
    return {name: before.get(name, 0) + int(found.get(name) or 0) for name in {**before, **found}}


def _observed(event: Mapping[str, Any], counted: int) -> int:
    """Return the observed row count if the query has one, else Spark's count."""
    observed = (event.get("observedMetrics") or {}).get(OBSERVED_ROWS)
    return counted if observed is None else int(observed[OBSERVED_ROWS] or 0)


def _late(operators: Iterable[Mapping[str, Any]]) -> int:
    return sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators)


def _lag(sources: Any) -> dict[str, int]:
    lag: dict[str, int] = {}
    for source in sources:
        read, there = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for topic, partitions in there.items():
            for partition, latest in partitions.items():
                behind = int(latest) - int(read.get(topic, {}).get(partition, 0))
                lag[f"{topic}-{partition}"] = max(behind, 0)
    return lag


def _offsets(event: Any) -> dict[str, dict[str, int]]:
    """Parse offsets, which Spark embeds as an object or as JSON text."""
    if isinstance(event, str):
        try:
            event = json.loads(event)
        except ValueError:
            return {}
    return event if isinstance(event, dict) and all(isinstance(each, dict) for each in event.values()) else {}


def prometheus_text(name: str, parts: Sequence[Progress], *, is_running: bool) -> str:
    """Format metrics for the textfile collector of the node exporter."""
    pipeline = f'pipeline="{_escaped(name)}"'
    each = {_labels(pipeline, part): part for part in parts}
    lines = [
        *_metric("up", "gauge", "1 while the pipeline runs, else 0", {pipeline: int(is_running)}),
        *_metric("batch_id", "gauge", "Number of the last finished batch", {at: of.batch for at, of in each.items()}),
        *_metric("input_rows_total", "counter", "Rows read", {at: of.rows_total for at, of in each.items()}),
        *_metric(
            "late_rows_total",
            "counter",
            "Rows dropped behind the watermark",
            {at: of.late_total for at, of in each.items()},
        ),
        *_metric("rule_violations_total", "counter", "Violations of a rule", _violation_samples(each)),
        *_metric(
            "rows_per_second",
            "gauge",
            "Rows per second in the last batch",
            {at: of.rows_per_s for at, of in each.items()},
        ),
        *_metric(
            "batch_seconds", "gauge", "Duration of the last batch", {at: of.batch_ms / 1000 for at, of in each.items()}
        ),
        *_metric("progress_timestamp_seconds", "gauge", "When", {at: of.at_ms / 1000 for at, of in each.items()}),
        *_metric("lag_records", "gauge", "Records not yet read", _lag_samples(each)),
    ]
    return "\n".join(lines) + "\n"


def _labels(pipeline: str, progress: Progress) -> str:
    return f'{pipeline},part="{_escaped(progress.part)}"' if progress.part else pipeline


def _violation_samples(parts: Mapping[str, Progress]) -> dict[str, float]:
    counted = [(labels, *pair) for labels, progress in parts.items() for pair in progress.violations.items()]
    return {f'{labels},rule="{_escaped(rule)}"': count for labels, rule, count in counted}


def _lag_samples(parts: Mapping[str, Progress]) -> dict[str, float]:
    samples: dict[str, float] = {}
    for labels, progress in parts.items():
        for place, behind in progress.lag.items():
            topic, _, partition = place.rpartition("-")
            samples[f'{labels},topic="{_escaped(topic)}",partition="{partition}"'] = behind
    return samples


def _metric(name: str, kind: str, says: str, samples: Mapping[str, float]) -> list[str]:
    full = f"moldau_pipeline_{name}"
    shown = [f"{full}{{{labels}}} {value:.15g}" for labels, value in samples.items()]
    return [f"# HELP {full} {says}.", f"# TYPE {full} {kind}", *shown]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
