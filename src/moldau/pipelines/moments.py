"""Times that come out of Spark. PySpark hands them over in the zone of the machine, and without a word about it."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from typing import Any, TypeAlias

Change: TypeAlias = Callable[[Any], Any]


def with_zones(rows: Iterable[Any], schema: Any) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples. Times are in UTC, as they are in the query, and say so; those without a zone stay so."""
    changes = [_change(each.dataType) for each in schema.fields]
    for row in rows:
        yield tuple(_changed(value, change) for value, change in zip(row, changes, strict=True))


def _changed(value: Any, change: Change | None) -> Any:
    return value if value is None or change is None else change(value)


def _change(kind: Any) -> Change | None:
    """What is to be done with values of a type; None if it has no times in it."""
    match kind.typeName():
        case "timestamp":
            return lambda value: value.astimezone(UTC)
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
