"""Avro values of ten columns to Arrow, by columns and in a loop of fastavro: CPU only, without a broker."""

import io
import json
import time
from collections.abc import Callable
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from moldau.cli.bench.rounds import Round
from moldau.schemas import avro
from pyspark_moldau.schemas.avro_values import AvroValues
from pyspark_moldau.schemas.registry_values import Payloads

COLUMNS: Final = "Avro decoding by columns"
LOOP: Final = "Avro decoding in a loop of fastavro"
_ROWS: Final = 10_000  # as in a batch of the source
_BATCHES: Final = 10
_SCHEMA: Final[Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "number", "type": "int"},
        {"name": "price", "type": "double"},
        {"name": "is_new", "type": "boolean"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "click", "buy"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "share", "type": ["null", "float"]},
        {"name": "note", "type": "string"},
    ],
}


def avro_subjects() -> dict[str, Callable[[], Round]]:
    """Return both ways to decode the same values, each into an Arrow array."""
    values = [_encoded(number) for number in range(_ROWS)]
    column = pa.array(values, pa.binary())
    bounds = np.frombuffer(column.buffers()[1], np.int32).astype(np.int64)[: _ROWS + 1]
    payloads = Payloads(np.frombuffer(column.buffers()[2], np.uint8), bounds[:-1], bounds[1:])
    decoder, schema = AvroValues(avro.parse(json.dumps(_SCHEMA), {})), fastavro.parse_schema(_SCHEMA)
    size = sum(map(len, values))

    def loop() -> pa.Array:
        return pa.array([fastavro.schemaless_reader(io.BytesIO(each), schema, None) for each in values], decoder.type)

    return {COLUMNS: lambda: _round(lambda: decoder.decode(payloads), size), LOOP: lambda: _round(loop, size)}


def _round(decode: Callable[[], object], size: int) -> Round:
    started_s = time.perf_counter()
    for _ in range(_BATCHES):
        decode()
    return Round(1, time.perf_counter() - started_s, _BATCHES * size, _BATCHES * _ROWS)


def _encoded(number: int) -> bytes:
    row = {
        "id": number * 7919,
        "user": f"user-{number % 997}",
        "page": None if number % 3 == 0 else f"/shop/{number % 101}",
        "number": number,
        "price": number / 7,
        "is_new": number % 2 == 0,
        "kind": ("view", "click", "buy")[number % 3],
        "at": 1_700_000_000_000 + number,
        "share": None if number % 2 else 0.5,
        "note": "x" * (number % 50),
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _SCHEMA, row)
    return stream.getvalue()
