"""The source option `valueFormat`: the column `value` is a struct, decoded in the tasks that read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_moldau.codec import columns
from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.options.value_options import ValueOptions
from pyspark_moldau.schemas.registry_column import RegistryColumn, column_type, registry_column, values_of

ERROR_COLUMN: Final = "value_error"


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """Decodes values with the schemas of a registry. `has_errors`: the reasons are in a column of their own."""

    column: RegistryColumn
    has_errors: bool

    @classmethod
    def of(cls, options: ValueOptions) -> Self:
        column = registry_column(options.registry, options.settings, options.subject)
        if column.schema.kind.lower() != options.kind:
            raise OptionError(
                f"Option 'valueFormat' is {options.kind}, but subject {options.subject} has a schema of type "
                f"{column.schema.kind}."
            )
        return cls(column, options.has_error_column)

    def row_type(self, *, with_headers: bool) -> StructType:
        """Return the columns of the source with a struct in place of the binary value."""
        kinds = {"value": column_type(self.column.schema)}
        plain = [
            StructField(each.name, from_arrow_type(kinds.get(each.name, each.type)))
            for each in columns.schema(with_headers=with_headers)
        ]
        return StructType([*plain, *([StructField(ERROR_COLUMN, StringType())] if self.has_errors else [])])

    def apply(self, batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        return (self._decoded(each) for each in batches)

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = values_of(self.column).decode(batch.column("value"))
        if found.bad and not self.has_errors:
            number = min(found.bad)
            at = f"partition {batch.column('partition')[number]}, offset {batch.column('offset')[number]}"
            raise ValueError(f"the value at {at}: {found.bad[number]}; use the option valueErrors=column")
        place = batch.schema.get_field_index("value")
        changed = batch.set_column(place, pa.field("value", found.values.type), found.values)
        if not self.has_errors:
            return changed
        reasons = pa.array([found.bad.get(number) for number in range(batch.num_rows)], pa.string())
        return changed.append_column(pa.field(ERROR_COLUMN, pa.string()), reasons)
