"""Spark's own connector and ours, side by side: the same options in, rows or an error out."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from moldau.testing.broker import Broker
from moldau_dev.spark import stored_offsets, until_done

HERE: Final = Path(__file__).parent
OFFICIAL: Final = "kafka"
OURS: Final = "moldau"
BOTH: Final = (OFFICIAL, OURS)
has_spark: Final = importlib.util.find_spec("pyspark") is not None


def jars() -> list[Path]:
    """Return the jars that `make test-connector` has fetched."""
    folders = sorted((HERE / "target").glob("connector-*"))
    return sorted(folders[-1].glob("*.jar")) if folders else []


def with_options(builder: Any, form: str, broker: Broker, options: Mapping[str, object]) -> Any:
    """`spark.read`, `df.write` and their like; an option that is None is left out."""
    builder = builder.format(form)
    for name, value in {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}.items():
        if value is not None:
            builder = builder.option(name, str(value))
    return builder


def table(spark: Any, form: str, broker: Broker, options: Mapping[str, object]) -> list[Any]:
    """A batch query's rows, all columns, in the order of their offsets."""
    frame = with_options(spark.read, form, broker, options).load()
    return list(frame.orderBy("topic", "partition", "offset").collect())


class Kept:
    """A stream into Parquet files, with a checkpoint from which both connectors may resume."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark = spark
        self.checkpoint, self._rows = folder / "checkpoint", folder / "rows"

    def run(self, form: str, broker: Broker, options: Mapping[str, object]) -> None:
        frame = with_options(self._spark.readStream, form, broker, options).load()
        writing = frame.writeStream.format("parquet").option("path", str(self._rows))
        until_done(writing.option("checkpointLocation", str(self.checkpoint)))

    @property
    def rows(self) -> list[Any]:
        return list(self._spark.read.parquet(str(self._rows)).orderBy("topic", "partition", "offset").collect())

    @property
    def stored_offsets(self) -> list[str]:
        """Return the end offsets of each batch in the checkpoint."""
        return stored_offsets(self.checkpoint)
