"""Decoders of record values: columns of Arrow for the rows that can be decoded, a reason for each of the others."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from moldau.pipelines.requirements import PipelineError


class NewFields(enum.Enum):
    """The treatment of fields of values for which the table has no column."""

    ADD = "add"
    IGNORE = "ignore"
    STOP = "stop"


class UnknownFields(PipelineError):
    """Values have fields that the table lacks, and the table must not grow."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns of the rows `kept`, by their index in the batch, and the reasons why the others are not."""

    columns: pa.Table
    kept: list[int] | None = None  # None: all
    bad: Mapping[int, str] = field(default_factory=dict)


class ValueDecoder(Protocol):
    """Decodes the values of a batch; null values are tombstones and get null columns."""

    def decode(self, values: pa.Array) -> Decoded: ...


class RawValues:
    """Values as they are, in the column `value`."""

    def decode(self, values: pa.Array) -> Decoded:
        return Decoded(pa.table({"value": values.cast(pa.binary())}))
