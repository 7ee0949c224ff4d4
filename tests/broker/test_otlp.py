"""The reader of pushed metrics against OpenTelemetry's own protobuf classes, and against damaged payloads."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp

from moldau.broker.telemetry.otlp import Point, PushedMetric, read_metrics
from moldau.model.errors import InvalidRecord

DELTA, CUMULATIVE = 1, 2
NODE = KeyValue(key="node.id", value=AnyValue(string_value="1"))


def gauge(name: str, *values: float, attributes: tuple[KeyValue, ...] = ()) -> otlp.Metric:
    points = [otlp.NumberDataPoint(as_double=value, attributes=attributes, time_unix_nano=5) for value in values]
    return otlp.Metric(name=name, description="d", unit="ms", gauge=otlp.Gauge(data_points=points))


def counter(name: str, value: int, *, temporality: int = DELTA, is_monotonic: bool = True) -> otlp.Metric:
    points = [otlp.NumberDataPoint(as_int=value)]
    total = otlp.Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=is_monotonic)  # type: ignore[arg-type]
    return otlp.Metric(name=name, sum=total)


def payload_of(*metrics: otlp.Metric) -> bytes:
    scope = otlp.ScopeMetrics(metrics=metrics)
    scope.scope.name = "a scope"
    resource = otlp.ResourceMetrics(scope_metrics=[scope], schema_url="url")
    resource.resource.attributes.append(NODE)
    return bytes(otlp.MetricsData(resource_metrics=[resource]).SerializeToString())


def read(payload: bytes) -> list[PushedMetric]:
    return [each for each in read_metrics(payload) if each is not None]


def test_gauges_and_delta_sums_are_read() -> None:
    payload = payload_of(gauge("a.b", 1.5, -2, attributes=(NODE,)), gauge("plain", 3), counter("sent.total", 2**40))
    assert read(payload) == [
        PushedMetric("a.b", False, [Point(1.5, True), Point(-2.0, True)]),
        PushedMetric("plain", False, [Point(3.0, False)]),
        PushedMetric("sent.total", True, [Point(2.0**40, False)]),
    ]


def test_metrics_without_use_are_skipped() -> None:
    histogram = otlp.Metric(name="h", histogram=otlp.Histogram(data_points=[otlp.HistogramDataPoint(count=3)]))
    payload = payload_of(
        gauge("nan", math.nan),
        gauge("inf", math.inf),
        counter("cumulative", 3, temporality=CUMULATIVE),
        histogram,
        gauge("x" * 201, 1),
        gauge("", 1),
        gauge('quote"', 1),
        gauge("kept", 1),
    )
    assert [each.name for each in read(payload)] == ["kept"]


def test_sum_that_may_decrease_is_a_gauge() -> None:
    assert not read(payload_of(counter("level", 3, is_monotonic=False)))[0].is_counter


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\x05\x12",  # a message longer than the payload
        b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # a length of more than ten bytes
        b"\x0b",  # a group
        b"\x08\x01",  # a number where a message belongs
        b"\x0a\x02\x12\x09ABCDEFGHI",  # longer than the message around it
        b"\x80",
    ],
)
def test_invalid_payload_is_rejected(payload: bytes) -> None:
    with pytest.raises(InvalidRecord, match="OTLP"):
        read(payload)


NAMES = st.from_regex(r"[a-z][a-z.]{0,20}", fullmatch=True)
VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=8))
def test_reader_agrees_with_the_protobuf_classes(drawn: list[tuple[str, list[float], bool]]) -> None:
    metrics = [gauge(name, *values, attributes=(NODE,) if has else ()) for name, values, has in drawn]
    expected = [PushedMetric(name, False, [Point(value, has) for value in values]) for name, values, has in drawn]
    assert read(payload_of(*metrics)) == expected


@given(st.data())
def test_damaged_payload_is_read_or_rejected_in_bounded_steps(data: st.DataObject) -> None:
    payload = bytearray(payload_of(gauge("a.b", 1.5, attributes=(NODE,)), counter("c", 7)))
    for _ in range(data.draw(st.integers(1, 6))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    steps = 0
    with contextlib.suppress(InvalidRecord):
        for metric in read_metrics(bytes(payload)):
            steps += 1
            assert metric is None or all(math.isfinite(each.value) for each in metric.points)
    assert steps <= 2 * len(payload)
