"""The record code of two client libraries behind one typed interface."""

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.record import default_records as aiokafka_records

from moldau.records.builder import NewRecord
from moldau.records.record import Record

with warnings.catch_warnings():
    # kafka-python loads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import default_records as kafka_python_records
    from kafka.record import util as kafka_python_varints

LZ4_FRAME: Any = importlib.import_module("lz4.frame")  # comes without types


@dataclass(frozen=True)
class Library:
    """A client library that builds and reads batches."""

    name: str
    builder: Any
    reader: Any

    def build(
        self,
        records: Sequence[NewRecord],
        *,
        compression: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> bytes:
        builder = self.builder(
            magic=2,
            compression_type=compression,
            is_transactional=int(is_transactional),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            batch_size=1 << 30,
        )
        for offset, (timestamp, key, value, headers) in enumerate(records):
            assert builder.append(offset, timestamp, key, value, list(headers)) is not None
        return bytes(builder.build())

    def open(self, batch: bytes) -> Any:
        return self.reader(batch)

    def read(self, batch: bytes) -> list[Record]:
        opened = self.open(batch)
        assert opened.validate_crc()
        return [
            Record(record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))
            for record in opened
        ]


AIOKAFKA = Library("aiokafka", aiokafka_records.DefaultRecordBatchBuilder, aiokafka_records.DefaultRecordBatch)
AIOKAFKA_PURE = Library(
    "aiokafka-pure", aiokafka_records._DefaultRecordBatchBuilderPy, aiokafka_records._DefaultRecordBatchPy
)
KAFKA_PYTHON = Library(
    "kafka-python", kafka_python_records.DefaultRecordBatchBuilder, kafka_python_records.DefaultRecordBatch
)
LIBRARIES = (AIOKAFKA, AIOKAFKA_PURE, KAFKA_PYTHON)


def encode_varint_elsewhere(value: int) -> bytes:
    out = bytearray()
    encode: Any = kafka_python_varints.encode_varint
    encode(value, out.append)
    return bytes(out)


def decode_varint_elsewhere(encoded: bytes) -> tuple[int, int]:
    decode: Any = kafka_python_varints.decode_varint
    value, position = decode(memoryview(encoded), 0)
    return int(value), int(position)
