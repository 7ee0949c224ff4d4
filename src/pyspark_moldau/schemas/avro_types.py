"""The Arrow type of an Avro schema, as Spark's own Avro source maps it, and the plan for decoding by columns."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from moldau.schemas.types import InvalidSchema

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
DECIMAL_DIGITS_MAX: Final = 38


class AvroTypes:
    """Resolves the named types of one schema."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._open: set[str] = set()

    def resolved(self, schema: Any) -> Any:
        """Return a schema as an object, with the definition of a name in place of the name."""
        if isinstance(schema, str):
            return {"type": schema} if schema in _PRIMITIVES else self._names[schema]
        if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            return self.resolved(schema["type"])
        if isinstance(schema, dict) and schema["type"] not in (*_PRIMITIVES, "record", "error", "array", "map"):
            return self._names[schema["type"]]
        return schema

    def arrow(self, schema: Any) -> pa.DataType:
        found = self.resolved(schema)
        if isinstance(found, list):
            return self.arrow(self.branch(found))
        match found["type"]:
            case "record" | "error":
                return self._struct(found)
            case "array":
                return pa.list_(pa.field("element", self.arrow(found["items"])))
            case "map":
                return pa.map_(pa.string(), self.arrow(found["values"]))
        if found.get("logicalType") == "decimal" and found["type"] in ("bytes", "fixed"):
            precision = int(found["precision"])
            if precision <= DECIMAL_DIGITS_MAX:
                return pa.decimal128(precision, int(found.get("scale", 0)))
        return _LOGICAL.get((found["type"], found.get("logicalType", "")), _PRIMITIVES[found["type"]])

    def _struct(self, schema: Any) -> pa.DataType:
        if schema["name"] in self._open:
            raise InvalidSchema(f"record {schema['name']} contains itself, which a column cannot")
        self._open.add(schema["name"])
        fields = [pa.field(each["name"], self.arrow(each["type"])) for each in schema["fields"]]
        self._open.remove(schema["name"])
        return pa.struct(fields)

    def branch(self, union: list[Any]) -> Any:
        """Return the only branch of a union that is not null."""
        others = [each for each in union if self.resolved(each) != {"type": "null"}]
        if len(others) > 1:
            raise InvalidSchema("a union of several types besides null has no column type")
        return others[0] if others else "null"
