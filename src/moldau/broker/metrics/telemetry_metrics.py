"""Metrics that clients push, and how many of their requests were rejected."""

import re
from collections.abc import Iterator
from typing import Final

from moldau.broker.metrics import catalogue
from moldau.broker.metrics.catalogue import CLIENT_METRICS_PREFIX, Metric
from moldau.broker.metrics.prometheus_text import plain
from moldau.broker.telemetry.client_telemetry import ClientSample, ClientTelemetry

SAMPLES_MAX: Final = 20_000  # a page that Prometheus can scrape
KAFKA_PREFIX: Final = "org.apache.kafka."
_LABELS: Final = ("user", "client_id")


def telemetry_lines(telemetry: ClientTelemetry) -> Iterator[str]:
    """Yield the broker's own counts, then one sample per metric and client."""
    meter = telemetry.meter
    gauges = telemetry.gauges()
    yield from plain(catalogue.CLIENT_INSTANCES, [((), len(telemetry.instances))])
    yield from plain(catalogue.CLIENT_PUSHES, [((), meter.pushes)])
    yield from plain(catalogue.CLIENT_FAILED_PUSHES, [((), meter.failed_pushes)])
    yield from plain(catalogue.CLIENT_THROTTLES, [((), meter.throttled)])
    yield from plain(catalogue.CLIENT_UNKNOWN_SUBSCRIPTIONS, [((), meter.unknown_subscriptions)])
    yield from plain(catalogue.CLIENT_DROPPED_METRICS, [((), meter.dropped_metrics)])
    left = SAMPLES_MAX
    for metric, samples in _families(telemetry.counters(), gauges):
        yield from plain(metric, [(each.client, each.value) for each in samples[:left]])
        left -= len(samples)
        if left <= 0:
            return


def _families(
    counters: dict[str, list[ClientSample]], gauges: dict[str, list[ClientSample]]
) -> Iterator[tuple[Metric, list[ClientSample]]]:
    """Metrics in the order of their names; of two with the same name on the page only the first is shown."""
    shown: set[str] = set()
    for kind, families in ((catalogue.COUNTER, counters), (catalogue.GAUGE, gauges)):
        for name in sorted(families):
            page_name = page_name_of(name, is_counter=kind is catalogue.COUNTER)
            if page_name not in shown:
                shown.add(page_name)
                yield Metric(page_name, kind, f"{name}, pushed by clients.", _LABELS), families[name]


def page_name_of(name: str, *, is_counter: bool) -> str:
    """The name on the metrics page. The prefix keeps clients from replacing metrics of the broker."""
    page_name = CLIENT_METRICS_PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name.removeprefix(KAFKA_PREFIX))
    return f"{page_name}_total" if is_counter and not page_name.endswith("_total") else page_name
