"""Values of a schema registry as columns of a table: each writer's schema adds its fields, missing ones are null."""

import os
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.pipelines.lake.column_types import IncompatibleTypes, merged_schema, stored_fields
from moldau.pipelines.lake.shared_schema import SharedSchema
from moldau.pipelines.lake.values import Decoded, NewFields, UnknownFields
from moldau.schemas.registry_client import RegistryClient
from pyspark_moldau.schemas.registry_values import SchemaLookup, conformed, grouped

# As Confluent's clients name it; a command line would show a password.
USER_INFO: Final = "MOLDAU_REGISTRY_USER_INFO"


def registry_rows(url: str, shared: SharedSchema, new_fields: NewFields) -> "RegistryRows":
    settings = {"basic.auth.user.info": os.environ.get(USER_INFO, "")}
    return RegistryRows(SchemaLookup(RegistryClient(url, settings)), shared, new_fields)


class RegistryRows:
    """Decodes values with the schemas that wrote them, into the columns that all tasks share."""

    def __init__(self, lookup: SchemaLookup, shared: SharedSchema, new_fields: NewFields = NewFields.ADD) -> None:
        self._lookup, self._shared, self._new_fields = lookup, shared, new_fields
        self._schema = shared.read()

    def decode(self, values: pa.Array) -> Decoded:
        column = values.cast(pa.binary())
        groups, bad = grouped(column)
        found: list[tuple[Any, pa.Array]] = []
        for schema_id, (rows, payloads) in groups.items():
            decoder = self._lookup.find(schema_id)
            reason = decoder if isinstance(decoder, str) else self._grown(decoder.type)
            if reason:
                bad.update(dict.fromkeys(rows.tolist(), reason))
            elif not isinstance(decoder, str):
                decoded = decoder.decode(payloads)
                bad.update({int(rows[number]): why for number, why in decoded.bad.items()})
                found.append((rows, decoded.values))
        return Decoded(*self._gathered(found, len(column), bad))

    def _grown(self, kind: pa.DataType) -> str | None:
        """Add a schema's fields to the table; return the reason if they do not fit."""
        seen = pa.schema(stored_fields(kind))
        try:
            is_known = merged_schema(self._schema, seen) == self._schema
        except IncompatibleTypes as error:
            return str(error)
        if is_known or (self._new_fields is NewFields.IGNORE and len(self._schema)):
            return None
        if self._new_fields is NewFields.STOP and len(self._schema):
            raise UnknownFields("the values have fields for which the table has no column; use --new-fields add")
        try:
            self._schema = self._shared.extend(seen)
        except IncompatibleTypes as error:
            return str(error)
        return None

    def _gathered(
        self, found: list[tuple[Any, pa.Array]], count: int, bad: dict[int, str]
    ) -> tuple[pa.Table, list[int], dict[int, str]]:
        """Return the columns of all rows that are not bad, in their order; null values have null columns."""
        kind = pa.struct(list(self._schema))
        origin, parts, begun = np.full(count, -1, np.int64), [pa.nulls(1, kind)], 1
        for rows, structs in found:
            converted, wrong = conformed(structs, kind)
            bad.update({int(rows[number]): why for number, why in wrong.items()})
            origin[rows] = np.arange(begun, begun + len(rows))
            parts.append(converted)
            begun += len(rows)
        kept = [number for number in range(count) if number not in bad]
        chosen = np.maximum(origin[kept], 0)  # the first struct is null, as for tombstones
        whole = pa.concat_arrays(parts).take(pa.array(chosen, pa.int64()))
        columns = [pc.struct_field(whole, each.name) for each in self._schema]
        return pa.Table.from_arrays(columns, schema=self._schema), kept, bad
