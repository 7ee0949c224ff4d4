"""Source → steps → sink: one description from which a job is run, and from which it is printed as plain PySpark."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from moldau.model.ids import TopicPartition

ROWS_PER_BATCH: Final = 500_000
FORMAT: Final = "moldau"
_ONE_INPUT: Final = threading.Lock()  # a session has one view of a name: jobs side by side would take each other's rows
_HEAD: Final = '''\
"""{title}: the job of `moldau pipeline run {job}` as plain PySpark. Needs Moldau with its extra spark."""

from pyspark_moldau import session

spark = session({name!r}, master={master!r})
'''


class Step(Protocol):
    """What happens to the rows on their way."""

    def apply(self, frame: Any) -> Any:
        """The DataFrame after the step."""

    def code(self) -> str:
        """Lines that make the new `frame` of the old one; `spark` is the session."""


class Sink(Protocol):
    """Where the rows go."""

    def stream(self, frame: Any) -> Any:
        """A DataStreamWriter that wants only its checkpoint and trigger."""

    def write(self, frame: Any) -> None:
        """All rows of a bounded job, all or nothing."""

    def code(self, *, is_bounded: bool) -> str:
        """Lines that make `writer` of `frame`; of a bounded job, that write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Topics from a place on; up to another place if the job is bounded."""

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
    """A topic, exactly once; without a topic, the one that each row names, and all of them in one transaction."""

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
    """A query over the view `input`, which has the rows so far."""

    text: str

    def apply(self, frame: Any) -> Any:
        with _ONE_INPUT:
            frame.createOrReplaceTempView("input")
            return frame.sparkSession.sql(self.text)

    def code(self) -> str:
        return f'frame.createOrReplaceTempView("input")\nframe = spark.sql({text_code(self.text.strip())})\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A job. `identity` is what a checkpoint of it belongs to."""

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
        """The running query. `every` so often it looks for more; by itself, as soon as it can."""
        writer = self.sink.stream(self.frame(spark)).queryName(self.name).option("checkpointLocation", checkpoint)
        if once:
            writer = writer.trigger(availableNow=True)
        elif every is not None:
            writer = writer.trigger(processingTime=every)
        return writer.start()

    def write(self, spark: Any) -> None:
        """A bounded job, to its end."""
        self.sink.write(self.frame(spark))

    def code(self) -> list[str]:
        """Pieces of a script that make `writer`; of a bounded job, that write it."""
        return [self.source.code(), *(step.code() for step in self.steps), self.sink.code(is_bounded=self.is_bounded)]

    def script(self, *, master: str | None, checkpoint: str, once: bool) -> str:
        """The same job without us."""
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
    """A text as Python has it; one of several lines stays as it is to read."""
    if "\n" not in text:
        return repr(text)
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""\n{escaped}\n"""'


def offsets_text(offsets: Mapping[TopicPartition, int]) -> str:
    """As the options startingOffsets and endingOffsets take them."""
    shape: dict[str, dict[str, int]] = {}
    for place in sorted(offsets):
        shape.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return json.dumps(shape)
