"""Steps based on event time: watermarks and deduplication."""

from dataclasses import dataclass
from typing import Any

from moldau.pipelines.flow import SqlStep


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """Sets a watermark; bounded jobs have none."""

    column: str
    lateness: str

    def apply(self, frame: Any) -> Any:
        return frame.withWatermark(self.column, self.lateness) if frame.isStreaming else frame

    def code(self) -> str:
        return f"frame = frame.withWatermark({self.column!r}, {self.lateness!r})\n"


@dataclass(frozen=True, slots=True)
class DeduplicateStep:
    """Deduplicates by a column within the watermark; in a bounded job, over all rows."""

    column: str

    def apply(self, frame: Any) -> Any:
        if frame.isStreaming:
            return frame.dropDuplicatesWithinWatermark([self.column])
        return SqlStep(self._first()).apply(frame)

    def code(self) -> str:
        return (
            "if frame.isStreaming:\n"
            f"    frame = frame.dropDuplicatesWithinWatermark([{self.column!r}])\n"
            "else:\n"
            '    frame.createOrReplaceTempView("input")\n'
            f"    frame = spark.sql({self._first()!r})\n"
        )

    def _first(self) -> str:
        order = "timestamp, topic, partition, offset"
        return (
            "select * from (select *, row_number() over "
            f"(partition by {self.column} order by {order}) as _place from input) where _place = 1"
        )
