"""The row schema for Arrow and Spark: the columns of Spark's Kafka source, in its order."""

from typing import Final

import pyarrow as pa

HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
ROW: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
ROW_WITH_HEADERS: Final = ROW.append(pa.field("headers", HEADERS))

_DDL: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_DDL_HEADERS: Final = ", headers array<struct<key: string, value: binary>>"

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1


def ddl(*, with_headers: bool) -> str:
    """Return the schema as Spark DDL."""
    return _DDL + _DDL_HEADERS if with_headers else _DDL


def schema(*, with_headers: bool) -> pa.Schema:
    return ROW_WITH_HEADERS if with_headers else ROW
