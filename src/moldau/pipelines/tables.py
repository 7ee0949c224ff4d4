"""Topics as SQL tables, with JSON fields as columns; the schema is inferred from the newest records."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from moldau.model.ids import TopicPartition
from moldau.pipelines.flow import FORMAT, offsets_text
from moldau.pipelines.requirements import PipelineError

SAMPLE_ROWS: Final = 2000
# Columns of the record besides its value; fields of the value keep their names.
_RECORD: Final = (
    "cast(key as string) as _key",
    "topic as _topic",
    "partition as _partition",
    "offset as _offset",
    "timestamp as _timestamp",
)
_RECORD_NAMES: Final = frozenset(each.rpartition(" ")[2] for each in _RECORD)
_IS_OBJECT: Final = r"cast(value as string) rlike '^\\s*[{]'"  # Spark would infer the element fields of a list
_CASE: Final = "spark.sql.caseSensitive"
# Strings and comments are tokens, so that a quote inside a comment does not start a string.
_WORD: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/|`((?:[^`]|``)+)`|([A-Za-z_][\w]*)""", re.DOTALL
)


def named_topics(query: str, topics: Iterable[str]) -> list[str]:
    """Return the topics that occur in a query, plain or in backquotes, outside strings and comments.

    SQL names are case-insensitive, topic names are not: topics that differ only in case cannot be used together.
    """
    found = (match[1].replace("``", "`") if match[1] else match[2] for match in _WORD.finditer(query))
    words = {word for word in found if word}
    meant: dict[str, list[str]] = {word.lower(): [] for word in words}
    for topic in sorted(topics):
        if topic.lower() in meant:
            meant[topic.lower()].append(topic)
    return sorted(_one_of(alike, words) for alike in meant.values() if alike)


def _one_of(alike: list[str], words: set[str]) -> str:
    chosen = [topic for topic in alike if topic in words] if len(alike) > 1 else alike
    if len(chosen) != 1:
        said = " and ".join(chosen or alike)
        raise PipelineError(
            f"{said} differ only in case, and SQL names are case-insensitive: use one of them, exactly as written"
        )
    return chosen[0]


def sample_starts(ends: Mapping[TopicPartition, tuple[int, int]], rows: int = SAMPLE_ROWS) -> str:
    """Return startingOffsets for about `rows` of the newest records over all partitions."""
    share = max(rows // max(len(ends), 1), 1)
    return offsets_text({place: max(start, end - share) for place, (start, end) in ends.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Session views, one per topic, over its current records or as a stream."""

    bootstrap_servers: str
    starting: Mapping[str, str] = field(default_factory=dict)
    ending: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    streamed_rows_max: int | None = None  # per batch of a stream; None: a bounded read

    def make(self, spark: Any, topic: str, sample: str) -> None:
        """Create the view of a topic. Values that are not JSON objects appear in the column `value`."""
        schema = self._schema(spark, topic, sample)
        records = self._records(spark, topic)
        if schema is None:
            table = records.selectExpr("cast(value as string) as value", *_RECORD)
        else:
            from pyspark.sql.functions import col, from_json

            parsed = from_json(col("value").cast("string"), schema).cast(_beside_the_record(schema))
            table = records.withColumn("_json", parsed).selectExpr("_json.*", *_RECORD)
        table.createOrReplaceTempView(f"`{topic}`")

    def _schema(self, spark: Any, topic: str, sample: str) -> Any:
        """Infer the schema of the values; None if they are not JSON objects."""
        limits = {"startingOffsets": sample, "endingOffsets": "latest"}
        newest = self._load(spark.read, topic, limits).where(_IS_OBJECT).limit(SAMPLE_ROWS)
        texts = newest.selectExpr("cast(value as string) as value").rdd.map(lambda row: row["value"])
        schema = _inferred(spark, texts)
        names = set(schema.names)
        return None if not names or names == {"_corrupt_record"} else _without_corrupt(schema)

    def _records(self, spark: Any, topic: str) -> Any:
        starting = {"startingOffsets": self.starting.get(topic, "earliest")}
        if self.streamed_rows_max is not None:
            limits = {**starting, "maxOffsetsPerTrigger": str(self.streamed_rows_max)}
            return self._load(spark.readStream, topic, limits)
        return self._load(spark.read, topic, {**starting, "endingOffsets": self.ending.get(topic, "latest")})

    def _load(self, reader: Any, topic: str, limits: Mapping[str, str]) -> Any:
        options = {
            **self.options,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": topic,
            "kafka.isolation.level": "read_committed",
        }
        return reader.format(FORMAT).options(**options, **limits).load()


def _inferred(spark: Any, texts: Any) -> Any:
    """Infer a case-sensitive schema: otherwise Spark silently drops `ID` beside `id`."""
    before = spark.conf.get(_CASE)
    spark.conf.set(_CASE, "true")
    try:
        return _each_once(spark.read.json(texts).schema)
    finally:
        spark.conf.set(_CASE, before)


def _each_once(kind: Any) -> Any:
    """Merge duplicate fields of an object into one column, which has the last value."""
    from pyspark.sql.types import ArrayType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_each_once(kind.elementType))
    if not isinstance(kind, StructType):
        return kind
    fields = {each.name: each.dataType for each in kind.fields}
    return StructType([StructField(name, _each_once(inner)) for name, inner in fields.items()])


def _beside_the_record(schema: Any) -> Any:
    """Prefix fields that collide with record columns, such as `_key`, with more underscores."""
    from pyspark.sql.types import StructField, StructType

    taken = {each.lower() for each in (*schema.names, *_RECORD_NAMES)}
    fields = [(_free(each.name, taken), each.dataType) for each in schema.fields]
    return StructType([StructField(name, inner) for name, inner in fields])


def _free(name: str, taken: Collection[str]) -> str:
    if name.lower() not in _RECORD_NAMES:
        return name
    return next(each for each in (f"{'_' * more}{name}" for more in count(1)) if each.lower() not in taken)


def _without_corrupt(schema: Any) -> Any:
    from pyspark.sql.types import StructType

    return StructType([each for each in schema.fields if each.name != "_corrupt_record"])
