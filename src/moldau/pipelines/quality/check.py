"""`check`: separates the records that violate rules, in one transaction per batch, and counts violations by rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.pipelines.flow import FORMAT, Flow, SqlStep, Step, TopicSink, TopicSource, options_code
from moldau.pipelines.progress import VIOLATIONS
from moldau.pipelines.quality.rules import Reference, Rules, Unique, sql_text
from moldau.pipelines.steps import DeduplicateStep, WatermarkStep

NOT_JSON: Final = "not a JSON object"
_RECORD: Final = "key, value, headers, topic, partition, offset, timestamp"
_REFERENCED: Final = "_referenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceStep:
    """Adds whether a field's value is a key of a compacted topic, as the topic is when the query starts."""

    reference: Reference
    column: str
    options: Mapping[str, str]

    def apply(self, frame: Any) -> Any:
        spark = frame.sparkSession
        spark.read.format(FORMAT).options(**self._options()).load().createOrReplaceTempView(_REFERENCED)
        frame.createOrReplaceTempView("input")
        return spark.sql(self._query())

    def code(self) -> str:
        return (
            f"(\n    spark.read.format({FORMAT!r})\n{options_code(self._options())}    .load()\n"
            f'    .createOrReplaceTempView("{_REFERENCED}")\n)\n'
            f'frame.createOrReplaceTempView("input")\nframe = spark.sql({self._query()!r})\n'
        )

    def _options(self) -> dict[str, str]:
        return {
            **self.options,
            "subscribe": self.reference.topic,
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
            "kafka.isolation.level": "read_committed",
        }

    def _query(self) -> str:
        """Join with the keys whose latest record is not a tombstone."""
        keys = (
            f"select cast(key as string) as _name from {_REFERENCED} where key is not null "
            "group by key having max_by(value is not null, struct(timestamp, offset))"
        )
        return (
            f"select input.*, {self.reference.field.text} is not null and _keys._name is null as {self.column} "
            f"from input left join ({keys}) _keys on {_qualified(self.reference)} = _keys._name"
        )


def _qualified(reference: Reference) -> str:
    return reference.field.text.replace("cast(value as", "cast(input.value as").replace(
        "cast(key as", "cast(input.key as"
    )


@dataclass(frozen=True, slots=True)
class CountStep:
    """Counts the violations of each rule in the progress of the query."""

    names: Sequence[str]

    def apply(self, frame: Any) -> Any:
        from pyspark.sql.functions import expr

        return frame.observe(VIOLATIONS, *(expr(each) for each in self._figures())) if frame.isStreaming else frame

    def code(self) -> str:
        figures = ", ".join(f"expr({each!r})" for each in self._figures())
        return f"from pyspark.sql.functions import expr\n\nframe = frame.observe({VIOLATIONS!r}, {figures})\n"

    def _figures(self) -> list[str]:
        return [f"count_if(array_contains(_violated, {sql_text(each)})) as `{_quoted(each)}`" for each in self.names]


def _quoted(name: str) -> str:
    return name.replace("`", "``")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The job: valid records go to a topic, if one is given, all others to the dead letters with their reasons."""

    name: str
    source: TopicSource
    rules: Rules
    letters: str
    to: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def counted(self) -> list[str]:
        return [NOT_JSON, *self.rules.names]

    def flow(self) -> Flow:
        sink = TopicSink(
            bootstrap_servers=self.source.bootstrap_servers,
            options={**self.options, "includeTimestamp": "true"},
        )
        return Flow(job="check", name=self.name, source=self.source, steps=tuple(self._steps()), sink=sink)

    def _steps(self) -> list[Step]:
        where = {**self.options, "kafka.bootstrap.servers": self.source.bootstrap_servers}
        steps: list[Step] = [SqlStep(f"select {_RECORD} from input")]
        columns = [f"_reference_{number}" for number in range(len(self.rules.references))]
        for column, each in zip(columns, self.rules.references, strict=True):
            steps.append(ReferenceStep(reference=each, column=column, options=where))
        steps.append(SqlStep(self._violations(columns)))
        for number, unique in enumerate(self.rules.unique):
            steps += _unique_steps(unique, number)
        return [*steps, CountStep(self.counted), SqlStep(self._routed())]

    def _violations(self, references: Sequence[str]) -> str:
        is_object = "is_valid_utf8(value) and try_parse_json(cast(value as string)) is not null"
        is_object = f"value is not null and {is_object} and ltrim(cast(value as string)) like '{{%'"
        pairs = [(NOT_JSON, f"not coalesce({is_object}, false)")]
        pairs += [(each.name, f"{is_object} and {each.violated}") for each in self.rules.rows]
        named = zip(self.rules.references, references, strict=True)
        pairs += [(each.name, f"{is_object} and {column}") for each, column in named]
        checks = ",\n        ".join(f"if({violated}, {sql_text(name)}, null)" for name, violated in pairs)
        return f"select {_RECORD}, array_compact(array(\n        {checks})) as _violated\nfrom input"

    def _routed(self) -> str:
        target = "null" if self.to is None else sql_text(self.to)
        texts = {
            "reason": "concat_ws('; ', _violated)",
            "topic": "topic",
            "partition": "partition",
            "offset": "offset",
        }
        added = ", ".join(
            f"named_struct('key', 'moldau.{name}', 'value', cast(cast({text} as string) as binary))"
            for name, text in texts.items()
        )
        bad = "size(_violated) > 0"
        return (
            f"select if({bad}, {sql_text(self.letters)}, {target}) as topic, key, value, timestamp,\n"
            f"    if({bad}, concat(coalesce(headers, array()), array({added})), headers) as headers\n"
            f"from input where {bad} or {target} is not null"
        )


def _unique_steps(unique: Unique, number: int) -> list[Step]:
    """Drop later records with the same value; invalid ones and those without the field pass."""
    identity, time = f"_identity_{number}", "_now"
    value = f"if(size(_violated) > 0, null, {unique.field.identity})"
    place = "concat('#', concat_ws('/', topic, partition, offset))"
    return [
        SqlStep(
            f"select {_RECORD}, _violated, current_timestamp() as {time}, "
            f"coalesce(concat('=', {value}), {place}) as {identity} from input"
        ),
        WatermarkStep(time, unique.within),
        DeduplicateStep(identity),
    ]
