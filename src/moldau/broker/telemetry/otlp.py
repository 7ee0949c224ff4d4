"""Gauges and sums of an OpenTelemetry metrics payload (OTLP), read in steps.

The payload is a protobuf message of the type MetricsData:

    MetricsData ─1─> ResourceMetrics ─2─> ScopeMetrics ─2─> Metric ─5─> Gauge ─1─> NumberDataPoint
                                                              └────7─> Sum ───1─> NumberDataPoint

Clients push nothing else: other types of metrics and all other fields are skipped. The reader walks the fields with an
explicit stack and yields after each of them, so that a hostile payload occupies the event loop only for the caller's
time slices. Nothing is stored but the points of the current metric, whose number the payload's size bounds.
"""

import math
import re
from collections.abc import Iterator
from enum import Enum, auto
from struct import Struct
from typing import Final, NamedTuple

from moldau.model.errors import InvalidRecord

NAME_CHARACTERS_MAX: Final = 200
_NAME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9._\-]{0,%d}" % (NAME_CHARACTERS_MAX - 1))
_DELTA: Final = 1  # aggregation temporality
_DOUBLE: Final = Struct("<d")
_SIGNED: Final = Struct("<q")
_VARINT_BYTES_MAX: Final = 10


class _WireType:
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class _Message(Enum):
    """The messages on the way to a data point."""

    METRICS_DATA = auto()
    RESOURCE_METRICS = auto()
    SCOPE_METRICS = auto()
    METRIC = auto()
    GAUGE = auto()
    SUM = auto()
    POINT = auto()


_SUBMESSAGES: Final = {
    (_Message.METRICS_DATA, 1): _Message.RESOURCE_METRICS,
    (_Message.RESOURCE_METRICS, 2): _Message.SCOPE_METRICS,
    (_Message.SCOPE_METRICS, 2): _Message.METRIC,
    (_Message.METRIC, 5): _Message.GAUGE,
    (_Message.METRIC, 7): _Message.SUM,
    (_Message.GAUGE, 1): _Message.POINT,
    (_Message.SUM, 1): _Message.POINT,
}


class Point(NamedTuple):
    """One value. The attributes (a node, a topic) are not kept, only whether there are any."""

    value: float
    has_attributes: bool


class PushedMetric(NamedTuple):
    """A gauge, or a counter with what was added to it since the last push."""

    name: str
    is_counter: bool
    points: list[Point]


class _Draft:
    """The metric that is being read."""

    __slots__ = ("has_attributes", "is_delta", "is_monotonic", "is_sum", "name", "points", "value")

    def __init__(self) -> None:
        self.name = b""
        self.is_sum = self.is_delta = self.is_monotonic = False
        self.points: list[Point] = []
        self.value = math.nan
        self.has_attributes = False

    def begin_point(self) -> None:
        self.value, self.has_attributes = math.nan, False

    def end_point(self) -> None:
        if math.isfinite(self.value):  # an average of nothing is NaN
            self.points.append(Point(self.value, self.has_attributes))

    def finished(self) -> PushedMetric | None:
        """The metric, or None if it is of no use here: cumulative sums were not requested."""
        if not self.points or not _NAME.fullmatch(self.name) or (self.is_sum and not self.is_delta):
            return None
        return PushedMetric(self.name.decode(), self.is_sum and self.is_monotonic, self.points)


def read_metrics(payload: bytes) -> Iterator[PushedMetric | None]:
    """Yield metrics, and None after every field, so that the caller can pause. Raises `InvalidRecord`."""
    draft = _Draft()
    stack = [(_Message.METRICS_DATA, len(payload))]
    position = 0
    while stack:
        message, end = stack[-1]
        if position == end:
            stack.pop()
            if message is _Message.POINT:
                draft.end_point()
            elif message is _Message.METRIC:
                yield draft.finished()
            continue
        key, position = _read_varint(payload, position, end)
        field = key >> 3
        start, stop, number = _read_field(payload, key & 7, position, end)
        below = _SUBMESSAGES.get((message, field))
        if below is not None:
            if key & 7 != _WireType.BYTES:
                raise InvalidRecord(f"The pushed metrics are no OTLP metrics: field {field} is no message.")
            stack.append((below, stop))
            position = start
            draft = _enter(below, draft)
        else:
            _set(draft, message, field, key & 7, payload, start, stop, number)
            position = stop
        yield None


def _enter(message: _Message, draft: _Draft) -> _Draft:
    match message:
        case _Message.METRIC:
            return _Draft()
        case _Message.SUM:
            draft.is_sum = True
        case _Message.POINT:
            draft.begin_point()
    return draft


def _set(
    draft: _Draft,
    message: _Message,
    field: int,
    wire_type: int,
    payload: bytes,
    start: int,
    stop: int,
    number: int,
) -> None:
    """Keep a field of a metric, a sum or a point; ignore all others."""
    match message, field, wire_type:
        case _Message.METRIC, 1, _WireType.BYTES:
            draft.name = payload[start : min(stop, start + NAME_CHARACTERS_MAX + 1)]
        case _Message.SUM, 2, _WireType.VARINT:
            draft.is_delta = number == _DELTA
        case _Message.SUM, 3, _WireType.VARINT:
            draft.is_monotonic = bool(number)
        case _Message.POINT, 4, _WireType.FIXED64:
            (draft.value,) = _DOUBLE.unpack_from(payload, start)
        case _Message.POINT, 6, _WireType.FIXED64:
            draft.value = float(_SIGNED.unpack_from(payload, start)[0])
        case _Message.POINT, 7, _WireType.BYTES:
            draft.has_attributes = True


def _read_field(payload: bytes, wire_type: int, position: int, end: int) -> tuple[int, int, int]:
    """Where the value of a field starts and stops, and its number if it is a varint."""
    number = 0
    match wire_type:
        case _WireType.VARINT:
            number, stop = _read_varint(payload, position, end)
        case _WireType.FIXED64:
            stop = position + 8
        case _WireType.BYTES:
            length, position = _read_varint(payload, position, end)
            stop = position + length
        case _WireType.FIXED32:
            stop = position + 4
        case _:
            raise InvalidRecord(f"The pushed metrics are no OTLP metrics: wire type {wire_type}.")
    if stop > end:
        raise InvalidRecord("The pushed metrics are no OTLP metrics: a field exceeds its message.")
    return position, stop, number


def _read_varint(payload: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if position >= end:
            break
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position
    raise InvalidRecord("The pushed metrics are no OTLP metrics: a number has no end.")
