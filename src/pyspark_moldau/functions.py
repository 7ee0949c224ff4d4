"""Column functions for values of a schema registry: `from_registry` and `to_registry`.

They work with Moldau's registry and with others that have Confluent's API. Workers receive and return Arrow arrays and
keep the schemas that they have looked up.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.functions import arrow_udf, col
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from moldau.schemas.types import UndecodableValue
from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.schemas.registry_column import (
    RegistryColumn,
    column_type,
    encoded,
    registered,
    registry_column,
    values_of,
)

VALUE: Final = "value"
ERROR: Final = "error"


class Errors(Enum):
    """The treatment of a value that cannot be decoded."""

    FAIL = "fail"  # the query fails
    NULL = "null"
    COLUMN = "column"  # the result is a struct of value and error


def from_registry(
    column: Column | str,
    registry: str,
    subject: str,
    *,
    version: int | str = "latest",
    errors: str = "fail",
    options: Mapping[str, str] | None = None,
) -> Column:
    """Decode binary values of any schema to a struct of this version of the subject.

    Fields that a value's schema lacks are null, or have the default of an Avro schema. `options` are credentials, such
    as `basic.auth.user.info`. With `errors="column"`, the result is a struct with the fields `value` and `error`.
    """
    wanted = _errors(errors)
    reader = registry_column(registry, options or {}, subject, str(version))
    kind = from_arrow_type(column_type(reader.schema))
    if wanted is Errors.COLUMN:
        kind = StructType([StructField(VALUE, kind), StructField(ERROR, StringType())])

    def decode(values: pa.Array) -> pa.Array:
        return decoded(reader, values, wanted)

    return arrow_udf(decode, kind)(_as_column(column))


def to_registry(
    column: Column | str,
    registry: str,
    subject: str,
    *,
    schema: str | None = None,
    schema_type: str = "AVRO",
    options: Mapping[str, str] | None = None,
) -> Column:
    """Encode structs with the latest schema of a subject, or with this one, which is registered first."""
    if schema is None:
        writer = registry_column(registry, options or {}, subject)
    else:
        writer = registered(registry, options or {}, subject, schema_type, schema)

    def encode(rows: pa.Array) -> pa.Array:
        return encoded(writer, rows)

    return arrow_udf(encode, BinaryType())(_as_column(column))


def decoded(reader: RegistryColumn, values: pa.Array, errors: Errors) -> pa.Array:
    """Decode values in a worker."""
    found = values_of(reader).decode(values)
    if errors is Errors.FAIL and found.bad:
        number = min(found.bad)
        raise UndecodableValue(f"{found.bad[number]}; use errors='null' or errors='column' to keep such rows")
    if errors is not Errors.COLUMN:
        return found.values
    reasons = pa.array([found.bad.get(number) for number in range(len(values))], pa.string())
    fields = [pa.field(VALUE, found.values.type), pa.field(ERROR, pa.string())]
    return pa.StructArray.from_arrays([found.values, reasons], fields=fields)


def _errors(text: str) -> Errors:
    try:
        return Errors(text)
    except ValueError:
        raise OptionError(f"errors={text!r}: choose {', '.join(each.value for each in Errors)}") from None


def _as_column(column: Column | str) -> Any:
    return col(column) if isinstance(column, str) else column
