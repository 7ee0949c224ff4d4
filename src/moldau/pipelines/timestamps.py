"""Transfers timestamps of any year from Spark to Python.

PySpark converts each to a local `datetime`, which fails outside the years 1 to 9999, and
records may have any timestamp. So `portable` selects numbers and texts instead, and `with_zones`
converts them back, leaving texts where `datetime` has no value.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

Change: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400_000_000
_CYCLE_YEARS: Final = 400  # the Gregorian calendar repeats after 400 years
_CYCLE_DAYS: Final = 146_097
_YEAR_MAX: Final = 9999


def portable(frame: Any) -> Any:
    """Select columns by position: timestamps as seconds, local timestamps and dates as text."""
    if not any(map(_change, (each.dataType for each in frame.schema.fields))):
        return frame
    names = [f"_{number}" for number in range(len(frame.schema.fields))]  # a result may have duplicate column names
    numbered = frame.toDF(*names)
    kinds = (_carried(each.dataType) for each in frame.schema.fields)
    return numbered.select(*(numbered[name].cast(kind).alias(name) for name, kind in zip(names, kinds, strict=True)))


def with_zones(rows: Iterable[Any], schema: Any) -> Iterator[tuple[Any, ...]]:
    """Convert the rows of a `portable` frame to tuples. `schema` is the original schema.

    Timestamps are aware datetimes in UTC; local timestamps stay naive.
    """
    changes = [_change(each.dataType) for each in schema.fields]
    for row in rows:
        yield tuple(_changed(value, change) for value, change in zip(row, changes, strict=True))


def moment(seconds: Decimal) -> datetime | str:
    """Convert seconds since 1970 to UTC; years outside `datetime` become ISO 8601 text with a sign."""
    days, microseconds = divmod(int(seconds.scaleb(6)), _DAY_US)
    cycles, days = divmod(days, _CYCLE_DAYS)
    alike = _EPOCH + timedelta(days=days, microseconds=microseconds)
    year = alike.year + cycles * _CYCLE_YEARS
    if 1 <= year <= _YEAR_MAX:
        return alike.replace(year=year)
    return (f"{year:+05d}" if year else "0000") + alike.isoformat()[4:]


def _local(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text.replace(" ", "T")


def _day(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


def _carried(kind: Any) -> Any:
    """Return the transfer type of a Spark type."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructField, StructType

    match kind.typeName():
        case "timestamp":
            return DecimalType(20, 6)
        case "timestamp_ntz" | "date":
            return StringType()
        case "array":
            return ArrayType(_carried(kind.elementType))
        case "map":
            return MapType(_carried(kind.keyType), _carried(kind.valueType))
        case "struct":
            return StructType([StructField(each.name, _carried(each.dataType)) for each in kind.fields])
        case _:
            return kind


def _changed(value: Any, change: Change | None) -> Any:
    return value if value is None or change is None else change(value)


def _change(kind: Any) -> Change | None:
    """Return the conversion for values of a type; None if it contains no timestamps."""
    match kind.typeName():
        case "timestamp":
            return moment
        case "timestamp_ntz":
            return _local
        case "date":
            return _day
        case "array":
            return _of_list(_change(kind.elementType))
        case "map":
            return _of_map(_change(kind.keyType), _change(kind.valueType))
        case "struct":
            return _of_row(kind.names, [_change(each.dataType) for each in kind.fields])
        case _:
            return None


def _of_list(change: Change | None) -> Change | None:
    return None if change is None else lambda values: [_changed(each, change) for each in values]


def _of_map(of_keys: Change | None, of_values: Change | None) -> Change | None:
    if of_keys is None and of_values is None:
        return None
    return lambda values: {_changed(key, of_keys): _changed(each, of_values) for key, each in values.items()}


def _of_row(names: list[str], changes: list[Change | None]) -> Change | None:
    if not any(changes):
        return None
    from pyspark.sql import Row

    made = Row(*names)
    return lambda row: made(*(_changed(each, change) for each, change in zip(row, changes, strict=True)))
