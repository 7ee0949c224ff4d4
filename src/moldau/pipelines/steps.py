"""Steps that look at the time of rows: how late a row may come, and each row once."""

from dataclasses import dataclass
from typing import Any

from moldau.pipelines.flow import SqlStep


@dataclass(frozen=True, slots=True)
class LatenessStep:
    """How much later than the latest time seen so far a row may be; in a bounded job, none is late."""

    column: str
    lateness: str

    def apply(self, frame: Any) -> Any:
        return frame.withWatermark(self.column, self.lateness) if frame.isStreaming else frame

    def code(self) -> str:
        return f"frame = frame.withWatermark({self.column!r}, {self.lateness!r})\n"


@dataclass(frozen=True, slots=True)
class OnceByStep:
    """Each value of a column once, as far as the lateness reaches; in a bounded job, the first of each."""

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
