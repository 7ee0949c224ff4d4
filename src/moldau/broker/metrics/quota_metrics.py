"""Rates and throttle times of the clients that quotas limit, and of new connections."""

from collections.abc import Iterator
from typing import Final

from moldau.broker.metrics import catalogue
from moldau.broker.metrics.catalogue import Metric
from moldau.broker.metrics.prometheus_text import Sample, plain
from moldau.broker.quotas.client_quotas import ClientQuotas, EntityQuota
from moldau.broker.quotas.connection_rates import ConnectionRates
from moldau.broker.quotas.quota_index import QuotaKind

ENTITIES_SHOWN_MAX: Final = 500  # per kind of quota: those that were used last

_METRICS: Final[tuple[tuple[QuotaKind, Metric, Metric], ...]] = (
    (QuotaKind.PRODUCE, catalogue.PRODUCE_QUOTA_RATE, catalogue.PRODUCE_THROTTLE_TIME),
    (QuotaKind.FETCH, catalogue.FETCH_QUOTA_RATE, catalogue.FETCH_THROTTLE_TIME),
    (QuotaKind.REQUEST, catalogue.REQUEST_QUOTA_TIME, catalogue.REQUEST_THROTTLE_TIME),
    (QuotaKind.MUTATION, catalogue.MUTATION_QUOTA_RATE, catalogue.MUTATION_THROTTLE_TIME),
)


def quota_lines(quotas: ClientQuotas, rates: ConnectionRates | None) -> Iterator[str]:
    """Yield one sample per limited entity and metric."""
    now_ms = quotas.clock.monotonic_ms()
    for kind, rate, throttle_time in _METRICS:
        entities = list(quotas.entities(kind, ENTITIES_SHOWN_MAX))
        yield from plain(rate, [_sample(each, each.per_second(now_ms)) for each in entities])
        yield from plain(throttle_time, [_sample(each, each.average_throttle_ms(now_ms)) for each in entities])
        if kind is QuotaKind.MUTATION:
            tokens = [_sample(each, each.bucket.refill(each.limit, now_ms)) for each in entities]
            yield from plain(catalogue.MUTATION_TOKENS, tokens)
    yield from plain(catalogue.CONNECTIONS_ACCEPTED, [((), rates.accepted if rates else 0)])
    yield from plain(catalogue.CONNECTIONS_DELAYED, [((), rates.throttled if rates else 0)])
    yield from plain(catalogue.CONNECTIONS_OVER_IP_RATE, [((), rates.rejected if rates else 0)])


def _sample(entity: EntityQuota, value: float) -> Sample:
    return (entity.user, entity.client_id), value
