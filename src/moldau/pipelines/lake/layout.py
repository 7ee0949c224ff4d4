"""The layout of a lake table: its rows, and how they are divided into files. Tasks receive it as text."""

import enum
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from moldau.model.units import MiB
from moldau.pipelines.lake.column_types import MOMENT
from moldau.pipelines.requirements import PipelineError

KEY: Final = "_key"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
TIME: Final = "_time"  # the event time, if it is a field of the value
HEADERS: Final = "_headers"
TOMBSTONE: Final = "_tombstone"  # only in files between the tasks and an upsert
DAY: Final = "day"
HOUR: Final = "hour"
EVENT_DAY: Final = "event_day"
EVENT_HOUR: Final = "event_hour"
FILE_BYTES: Final = 128 * MiB
OWN: Final = "_moldau"  # the folder of a table for what is not its data
LAYOUT_FILE: Final = "layout.json"
_FIXED: Final = {"--value": "value", "--mode": "mode", "--time": "time", "--partition-by": "by"}


class ValueFormat(enum.Enum):
    """How values become columns."""

    RAW = "raw"
    JSON = "json"
    REGISTRY = "registry"


class Mode(enum.Enum):
    """Whether a table has all records of a topic, or the latest record of each key."""

    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns, partitions and files of a table.

    `by` are partitions: `day` and `hour` of the event time, or columns. Iceberg computes day and hour itself
    (`has_hidden_partitions`); other tables have a column for them.
    """

    value: ValueFormat = ValueFormat.RAW
    mode: Mode = Mode.APPEND
    time: str | None = None
    by: tuple[str, ...] = ()
    has_hidden_partitions: bool = False
    file_bytes: int = FILE_BYTES
    codec: str = "zstd"
    new_fields: str = "add"
    registry: str = ""  # the URL of a schema registry

    def to_text(self) -> str:
        return json.dumps({**asdict(self), "value": self.value.value, "mode": self.mode.value})

    @classmethod
    def of_text(cls, text: str) -> Self:
        shape: dict[str, Any] = json.loads(text)
        return cls(
            **{**shape, "value": ValueFormat(shape["value"]), "mode": Mode(shape["mode"]), "by": tuple(shape["by"])}
        )

    @property
    def is_raw(self) -> bool:
        return self.value is ValueFormat.RAW

    @property
    def event_time(self) -> str:
        """The column with the time that day and hour are taken from."""
        return TIMESTAMP if self.time is None else TIME

    @property
    def partition_columns(self) -> list[str]:
        """The columns whose values divide the rows of a task into files."""
        return [{DAY: EVENT_DAY, HOUR: EVENT_HOUR}.get(each, each) for each in self.by]

    def record_fields(self) -> list[pa.Field]:
        """Return the columns that all rows have, whatever their value is."""
        return [
            pa.field(KEY, pa.binary() if self.is_raw else pa.string()),
            *([pa.field(HEADERS, headers_type())] if self.is_raw else []),
            pa.field(PARTITION, pa.int64()),
            pa.field(OFFSET, pa.int64()),
            pa.field(TIMESTAMP, MOMENT),
            *([] if self.time is None else [pa.field(TIME, MOMENT)]),
            *([] if self.has_hidden_partitions else self._time_fields()),
        ]

    def _time_fields(self) -> list[pa.Field]:
        kinds = {EVENT_DAY: pa.date32(), EVENT_HOUR: pa.string()}
        return [pa.field(each, kinds[each]) for each in self.partition_columns if each in kinds]

    def schema(self, values: pa.Schema) -> pa.Schema:
        """Return the columns of the table for these columns of the value."""
        own = self.record_fields()
        names = {each.name.lower() for each in own}
        taken = [each for each in values.names if each.lower() in names]
        if taken:
            raise PipelineError(f"field {taken[0]} of the values has the name of a column of the record")
        return pa.schema([*own, *values])


def stored_layout(folder: Path) -> Layout:
    """Return the layout of the table in a folder. Raises PipelineError if a lake job has not created it."""
    try:
        return Layout.of_text((folder / OWN / LAYOUT_FILE).read_text())
    except FileNotFoundError:
        raise PipelineError(f"{folder} is not the table of a lake job") from None


def note_layout(folder: Path, layout: Layout) -> None:
    """Store the layout of a new table; reject another one for an existing table."""
    place = folder / OWN / LAYOUT_FILE
    if place.exists():
        before = stored_layout(folder)
        for option, name in _FIXED.items():
            if getattr(before, name) != getattr(layout, name):
                raise PipelineError(
                    f"{option}: the table in {folder} was created with {shown(getattr(before, name))}, "
                    f"not with {shown(getattr(layout, name))}"
                )
    fresh = place.with_suffix(".new")
    fresh.write_text(layout.to_text())
    os.replace(fresh, place)


def shown(setting: object) -> str:
    if isinstance(setting, enum.Enum):
        return str(setting.value)
    return ", ".join(setting) or "none" if isinstance(setting, tuple) else str(setting or "none")


def headers_type() -> pa.DataType:
    from pyspark_moldau.codec.columns import HEADERS as KIND

    return KIND
