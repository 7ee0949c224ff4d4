"""Ready-made steps from topic to topic: `aggregate` (windowed aggregation) and `dedupe`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from moldau.pipelines.fields import Field
from moldau.pipelines.flow import SqlStep, Step, TopicSink, options_code
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.steps import DeduplicateStep, WatermarkStep

KINDS: Final = {
    "count": "count(*)",
    "sum": "sum({0})",
    "avg": "avg({0})",
    "min": "min({0})",
    "max": "max({0})",
    "distinct": "approx_count_distinct({0})",
}
_MOMENT: Final = "date_format({0}, \"yyyy-MM-dd'T'HH:mm:ss.SSS'Z'\")"


@dataclass(frozen=True, slots=True)
class Figure:
    """An aggregate function per group and window: a record count, or a function of a field."""

    kind: str
    field: Field | None = None

    @property
    def name(self) -> str:
        return self.kind if self.field is None else f"{self.kind}_{self.field.name}"

    @property
    def input(self) -> str | None:
        """SQL for the input column, None for a record count."""
        if self.field is None:
            return None
        return self.field.text if self.kind == "distinct" else self.field.number

    def formula(self, column: str) -> str:
        """Return SQL for the aggregate of its input column."""
        return KINDS[self.kind].format(_quoted(column))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Aggregates by time window and fields; a window is emitted once when it closes, or on each change (`updates`)."""

    by: Sequence[Field]
    window: str
    time: Field
    lateness: str
    slide: str | None = None
    figures: Sequence[Figure] = (Figure("count"),)
    updates: bool = False

    def __post_init__(self) -> None:
        names = ["start", "end", *(each.name for each in self.by), *(each.name for each in self.figures)]
        alike = [each.lower() for each in names]  # SQL names are case-insensitive
        twice = sorted({each for each in names if alike.count(each.lower()) > 1})
        if twice:
            raise PipelineError(f"two result columns would have the same name: {', '.join(twice)}")

    def steps(self) -> tuple[Step, ...]:
        late = WatermarkStep(self._own("time"), self.lateness)
        return SqlStep(self._columns()), late, SqlStep(self._groups()), self._records()

    def _own(self, name: str) -> str:
        """Return an internal column name with enough leading underscores to differ from all group fields."""
        taken = {each.name.lower() for each in self.by}
        return next(each for each in (f"{'_' * more}{name}" for more in count(1)) if each.lower() not in taken)

    def _columns(self) -> str:
        inputs = [f"{each.input} as {_quoted(self._own(each.name))}" for each in self.figures if each.input]
        groups = [f"{each.text} as {_quoted(each.name)}" for each in self.by]
        return _select([f"{self.time.time} as {self._own('time')}", *groups, *inputs])

    def _groups(self) -> str:
        spans = f"'{self.window}'" if self.slide is None else f"'{self.window}', '{self.slide}'"
        by = [_quoted(each.name) for each in self.by]
        figures = [f"{each.formula(self._own(each.name))} as {_quoted(each.name)}" for each in self.figures]
        window = f"window({self._own('time')}, {spans})"
        columns = [f"{window} as {self._own('window')}", *by, *figures]
        return f"{_select(columns)}\ngroup by {', '.join([window, *by])}"

    def _records(self) -> Step:
        """Key records by the group fields, which keeps a group in order; with updates, by group and window."""
        start, end = (_MOMENT.format(f"{self._own('window')}.{each}") for each in ("start", "end"))
        group = {each.name: _quoted(each.name) for each in self.by}
        figures = {each.name: _quoted(each.name) for each in self.figures}
        key = _key(group | ({"start": start} if self.updates else {}))
        value = _json({"start": start, "end": end} | group | figures)
        return SqlStep(_select([f"{key} as key", f"{value} as value"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedupe:
    """Emits each key once within the lateness. Records without the key all pass unchanged.

    Without `time`, the watermark follows the time of reading: no record is late, and none is lost.
    """

    key: Sequence[Field]
    lateness: str
    time: Field | None = None

    def steps(self) -> tuple[Step, ...]:
        time = "current_timestamp()" if self.time is None else self.time.time
        identity = f"coalesce({self._known()}, concat('#', concat_ws('/', topic, partition, offset)))"
        return (
            SqlStep(_select(["*", f"{time} as _time", f"{identity} as _identity"])),
            WatermarkStep("_time", self.lateness),
            DeduplicateStep("_identity"),
            SqlStep("select key, value, headers, timestamp from input"),
        )

    def _known(self) -> str:
        texts = [each.identity for each in self.key]
        return f"if(coalesce({', '.join(texts)}) is null, null, concat('=', to_json(array({', '.join(texts)}))))"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSink(TopicSink):
    """Writes the groups that a batch changed to a topic, exactly once, one transaction per batch."""

    def stream(self, frame: Any) -> Any:
        return frame.writeStream.outputMode("update").foreachBatch(self._take)

    def code(self, *, is_bounded: bool) -> str:
        if is_bounded:
            return TopicSink.code(self, is_bounded=True)
        options = options_code(self.write_options()).replace("\n    ", "\n        ")
        return (
            "def take(frame, batch):\n"
            '    query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")\n'
            f"    writer = (\n        frame.write.format('moldau')\n    {options}    )\n"
            '    writer.option("txnAppId", query).option("txnVersion", batch).mode("append").save()\n\n\n'
            'writer = frame.writeStream.outputMode("update").foreachBatch(take)\n'
        )

    def _take(self, frame: Any, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise RuntimeError("Spark has not set the query id of this batch.")
        identity = {"txnAppId": query, "txnVersion": str(batch)}
        frame.write.format("moldau").options(**self.write_options(), **identity).mode("append").save()


def _select(columns: Sequence[str]) -> str:
    listed = ",\n    ".join(columns)
    return f"select\n    {listed}\nfrom input"


def _json(columns: dict[str, str]) -> str:
    pairs = ", ".join(f"'{name}', {value}" for name, value in columns.items())
    return f"to_json(named_struct({pairs}), map('ignoreNullFields', 'false'))"


def _key(columns: dict[str, str]) -> str:
    """Return SQL for a key: one column unchanged, several as JSON, none as null."""
    if len(columns) > 1:
        return _json(columns)
    return next(iter(columns.values()), "cast(null as string)")


def _quoted(name: str) -> str:
    return f"`{name}`"
