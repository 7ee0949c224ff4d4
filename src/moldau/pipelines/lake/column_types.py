"""The column types of lake tables, and how a schema grows.

Integers are stored with 64 bits and floating-point numbers as doubles, so that a writer that widens its type needs no
change of the table. A schema grows by columns and by fields of structs; a column never changes its type.
"""

from collections.abc import Iterable

import pyarrow as pa

MOMENT = pa.timestamp("us", "UTC")


class IncompatibleTypes(ValueError):
    """A value does not fit the type of its column."""


def stored_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column for values of this type; None if there are no values, as in a list of nulls."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind):  # without a zone, the JSON parser has guessed it from a text
        return pa.string() if kind.tz is None else MOMENT
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_boolean(kind) or pa.types.is_decimal128(kind) or pa.types.is_date32(kind):
        return kind
    if pa.types.is_map(kind):
        return _stored_map(kind)
    return _stored_nested(kind)


def _stored_map(kind: pa.DataType) -> pa.DataType | None:
    items = stored_type(kind.item_type)
    return None if items is None else pa.map_(pa.string(), items)


def _stored_nested(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = stored_type(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pa.types.is_struct(kind):
        fields = stored_fields(kind.field(each) for each in range(kind.num_fields))
        return pa.struct(fields) if fields else None
    if pa.types.is_null(kind):
        return None
    raise IncompatibleTypes(f"values of type {kind} cannot be stored")


def stored_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the columns for these fields, all nullable, without those that have no values."""
    kinds = [(each.name, stored_type(each.type)) for each in fields]
    return [pa.field(name, kind) for name, kind in kinds if kind is not None]


def merged_schema(known: pa.Schema, seen: pa.Schema) -> pa.Schema:
    """Return the known schema with the fields that only the other one has."""
    return pa.schema(_merged_fields(list(known), list(seen)))


def _merged_fields(known: list[pa.Field], seen: list[pa.Field]) -> list[pa.Field]:
    by_name = {each.name: each for each in known}
    alike = {each.name.lower(): each.name for each in known}
    for each in seen:
        twin = alike.setdefault(each.name.lower(), each.name)
        if twin != each.name:  # most engines compare the names of columns without case
            raise IncompatibleTypes(f"field {each.name} differs only in case from column {twin}")
        before = by_name.get(each.name)
        kind = each.type if before is None else _merged_type(before.type, each.type, each.name)
        by_name[each.name] = pa.field(each.name, kind)
    return list(by_name.values())


def _merged_type(known: pa.DataType, seen: pa.DataType, name: str) -> pa.DataType:
    if known == seen:
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(seen):
        return pa.struct(_merged_fields(list(known), list(seen)))
    if pa.types.is_list(known) and pa.types.is_list(seen):
        return pa.list_(pa.field("element", _merged_type(known.value_type, seen.value_type, name)))
    raise IncompatibleTypes(f"field {name} is {seen}, but the column is {known}")


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns; missing ones are null."""
    columns = [
        table.column(each.name).cast(each.type) if each.name in table.column_names else pa.nulls(len(table), each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
