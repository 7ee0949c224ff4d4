"""Dead letters: what a topic of them contains, and their replay into the topics that they came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moldau.pipelines.flow import FORMAT, Flow, SqlStep, Step, TopicSink, TopicSource
from moldau.pipelines.quality.rules import sql_text

_LETTER = (
    "select key, value, timestamp, partition, offset, "
    "filter(coalesce(headers, array()), each -> not startswith(each.key, 'moldau.')) as headers, "
    "{reason} as reason, {topic} as topic from input"
)


def _header(name: str) -> str:
    found = f"filter(headers, each -> each.key = 'moldau.{name}')"
    return f"cast(get({found}, size({found}) - 1).value as string)"


def letters_step() -> SqlStep:
    """Return records with their `reason` and original `topic` as columns instead of headers."""
    return SqlStep(_LETTER.format(reason=_header("reason"), topic=_header("topic")))


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Dead letters with the same topic and reason."""

    topic: str | None
    reason: str | None
    count: int
    example: str


def letter_groups(spark: Any, source: TopicSource, limit: int) -> list[LetterGroup]:
    """Return the most frequent reasons, with the start of one value each."""
    options = {**source.read_options(), "endingOffsets": "latest"}
    options.pop("maxOffsetsPerTrigger", None), options.pop("commitOffsets", None)
    letters = letters_step().apply(spark.read.format(FORMAT).options(**options).load())
    grouped = letters.groupBy("topic", "reason")
    from pyspark.sql.functions import expr

    example = "left(decode(min_by(value, struct(partition, offset)), 'UTF-8'), 60) as example"
    rows = grouped.agg(expr("count(*) as count"), expr(example)).orderBy(expr("-count"), "topic", "reason").limit(limit)
    return [LetterGroup(row["topic"], row["reason"], row["count"], row["example"] or "") for row in rows.collect()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The job: write dead letters to the topics that they came from, each once, after the user's fixes."""

    name: str
    source: TopicSource
    to: str | None = None
    reason: str | None = None
    fixes: Sequence[Step] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def flow(self) -> Flow:
        sink = TopicSink(
            bootstrap_servers=self.source.bootstrap_servers, options={**self.options, "includeTimestamp": "true"}
        )
        return Flow(job="replay-dead", name=self.name, source=self.source, steps=tuple(self._steps()), sink=sink)

    def _steps(self) -> list[Step]:
        target = "topic" if self.to is None else sql_text(self.to)
        wanted = "true" if self.reason is None else f"reason rlike {sql_text(self.reason)}"
        chosen = f"select key, value, headers, timestamp, reason, {target} as topic from input"
        return [
            letters_step(),
            SqlStep(f"{chosen} where {target} is not null and {wanted}"),
            *self.fixes,
            SqlStep("select topic, key, value, headers, timestamp from input"),
        ]
