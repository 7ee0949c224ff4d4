"""Prometheus' text format: families of samples become lines."""

from collections.abc import Iterable, Iterator
from typing import Final

from moldau.broker.metrics.catalogue import Metric
from moldau.broker.runtime.meters import LatencyMeter

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)

Values = tuple[str, ...]
Sample = tuple[Values, float]


def escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    pairs = ",".join(f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=False))
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) or value != int(value) else str(int(value))


def head(metric: Metric) -> str:
    return f"# HELP {metric.name} {metric.doc}\n# TYPE {metric.name} {metric.kind}\n"


def plain(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    """Format counters and gauges. With fewer values than labels the last labels are omitted: a total."""
    yield head(metric)
    for values, number in samples:
        yield f"{metric.name}{_labels(metric.labels, values)} {_number(number)}\n"


def summary(metric: Metric, meters: Iterable[tuple[Values, LatencyMeter]]) -> Iterator[str]:
    """Format quantiles, in milliseconds as in Kafka."""
    yield head(metric)
    for values, meter in meters:
        labels = tuple(zip(metric.labels, values, strict=True))
        for quantile in QUANTILES:
            names = [name for name, _ in labels] + ["quantile"]
            shown = _labels(names, [*values, str(quantile)])
            yield f"{metric.name}{shown} {_number(meter.quantile_ms(quantile))}\n"
        yield f"{metric.name}_sum{_labels(metric.labels, values)} {_number(meter.sum_ms)}\n"
        yield f"{metric.name}_count{_labels(metric.labels, values)} {meter.count}\n"


def histogram(metric: Metric, meter: LatencyMeter) -> Iterator[str]:
    """Format buckets at powers of two of a microsecond, in seconds; empty ones too, for rates."""
    yield head(metric)
    seen = 0
    for index, count in enumerate(meter.buckets):
        seen += count
        yield f'{metric.name}_bucket{{le="{(1 << index) / 1e6}"}} {seen}\n'
    yield f'{metric.name}_bucket{{le="+Inf"}} {meter.count}\n'
    yield f"{metric.name}_sum {_number(meter.sum_ms / 1000)}\n"
    yield f"{metric.name}_count {meter.count}\n"
