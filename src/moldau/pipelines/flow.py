"""Source → steps → sink: a job that can be run or printed as a plain PySpark script."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from moldau.model.ids import TopicPartition

ROWS_PER_BATCH: Final = 500_000
FORMAT: Final = "moldau"
_ONE_INPUT: Final = threading.Lock()  # all jobs of a session share the view `input`
_HEAD: Final = '''\
"""{title}: the job of `moldau pipeline run {job}` as plain PySpark. Needs Moldau with its extra spark."""

from pyspark_moldau import session

spark = session({name!r}, master={master!r})
'''


class Step(Protocol):
    """A transformation of rows."""

    def apply(self, frame: Any) -> Any:
        """Return the transformed DataFrame."""

    def code(self) -> str:
        """Return script lines that assign the transformed `frame`; `spark` is the session."""


class Sink(Protocol):
    """The output of a flow."""

    def stream(self, frame: Any) -> Any:
        """Return a DataStreamWriter that lacks only its checkpoint and trigger."""

    def write(self, frame: Any) -> None:
        """Write all rows of a bounded job atomically."""

    def code(self, *, is_bounded: bool) -> str:
        """Return script lines that assign `writer`, or write `frame` if the job is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Topics from starting offsets; up to ending offsets if the job is bounded."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    starting: str = "earliest"  # or JSON: {"topic": {"0": 23}}
    ending: str | None = None
    group: str | None = None
    rows_per_batch_max: int = ROWS_PER_BATCH
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bounded(self) -> bool:
        return self.ending is not None

    def read_options(self) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": ",".join(self.topics),
            "startingOffsets": self.starting,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
        }
        if self.ending is not None:
            options["endingOffsets"] = self.ending
        else:
            options["maxOffsetsPerTrigger"] = str(self.rows_per_batch_max)
            if self.group is not None:
                options["commitOffsets"] = self.group
        return {**options, **self.options}

    def read(self, spark: Any) -> Any:
        reader = spark.read if self.is_bounded else spark.readStream
        return reader.format(FORMAT).options(**self.read_options()).load()

    def code(self) -> str:
        reader = "spark.read" if self.is_bounded else "spark.readStream"
        return f"frame = (\n    {reader}.format({FORMAT!r})\n{options_code(self.read_options())}    .load()\n)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """An exactly-once topic sink; without a topic, each row names its own, all in one transaction."""

    bootstrap_servers: str
    topic: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def write_options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            **({} if self.topic is None else {"topic": self.topic}),
            "deliveryGuarantee": "exactly-once",
            **self.options,
        }

    def stream(self, frame: Any) -> Any:
        return frame.writeStream.format(FORMAT).options(**self.write_options())

    def write(self, frame: Any) -> None:
        frame.write.format(FORMAT).options(**self.write_options()).mode("append").save()

    def code(self, *, is_bounded: bool) -> str:
        options = options_code(self.write_options())
        if is_bounded:
            return f'(\n    frame.write.format({FORMAT!r})\n{options}    .mode("append")\n    .save()\n)\n'
        return f"writer = (\n    frame.writeStream.format({FORMAT!r})\n{options})\n"


@dataclass(frozen=True, slots=True)
class SqlStep:
    """A query over the view `input`, the output of the step before."""

    text: str

    def apply(self, frame: Any) -> Any:
        with _ONE_INPUT:
            frame.createOrReplaceTempView("input")
            return frame.sparkSession.sql(self.text)

    def code(self) -> str:
        return f'frame.createOrReplaceTempView("input")\nframe = spark.sql({text_code(self.text.strip())})\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A job: source, steps and sink."""

    job: str
    name: str
    source: TopicSource
    steps: tuple[Step, ...] = ()
    sink: Sink

    @property
    def is_bounded(self) -> bool:
        return self.source.is_bounded

    def frame(self, spark: Any) -> Any:
        frame = self.source.read(spark)
        for step in self.steps:
            frame = step.apply(frame)
        return frame

    def start(self, spark: Any, checkpoint: str, *, once: bool, every: str | None = None) -> Any:
        """Start the query. `every` is the trigger interval; None: each batch starts when the one before has ended."""
        writer = self.sink.stream(self.frame(spark)).queryName(self.name).option("checkpointLocation", checkpoint)
        if once:
            writer = writer.trigger(availableNow=True)
        elif every is not None:
            writer = writer.trigger(processingTime=every)
        return writer.start()

    def write(self, spark: Any) -> None:
        """Run a bounded job to its end."""
        self.sink.write(self.frame(spark))

    def code(self) -> list[str]:
        """Return script parts that assign `writer`, or write the frame if the job is bounded."""
        return [self.source.code(), *(step.code() for step in self.steps), self.sink.code(is_bounded=self.is_bounded)]

    def script(self, *, master: str | None, checkpoint: str, once: bool) -> str:
        """Return the job as a plain PySpark script."""
        parts = [_HEAD.format(title=self.name, job=self.job, name=self.name, master=master), *self.code()]
        if not self.is_bounded:
            trigger = ".trigger(availableNow=True)" if once else ""
            parts.append(
                f"query = writer.queryName({self.name!r})"
                f'.option("checkpointLocation", {checkpoint!r}){trigger}.start()\nquery.awaitTermination()\n'
            )
        return "\n".join(parts)


def options_code(options: Mapping[str, str]) -> str:
    return "".join(f"    .option({name!r}, {value!r})\n" for name, value in options.items())


def text_code(text: str) -> str:
    """Return a Python literal; text of several lines becomes a readable triple-quoted string."""
    if "\n" not in text:
        return repr(text)
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""\n{escaped}\n"""'


def offsets_text(offsets: Mapping[TopicPartition, int]) -> str:
    """Format offsets for the options startingOffsets and endingOffsets."""
    shape: dict[str, dict[str, int]] = {}
    for place in sorted(offsets):
        shape.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return json.dumps(shape)
