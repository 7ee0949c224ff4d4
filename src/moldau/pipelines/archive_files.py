"""An archive in a folder that Python can write to by itself: tasks write the files, and the driver puts them in place.

<root>/_incoming/<writer>/   what tasks write; what no batch tells of was left by tasks that died, and is removed
"""

import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from moldau.pipelines.archive_sink import OFFSET_MAX, RECORD, ArchiveSink
from moldau.pipelines.flow import TopicSource
from moldau.pipelines.hadoop_files import local_path, replace_folder
from moldau.pipelines.progress import OBSERVED_ROWS

# What Spark calls them, and what pyarrow does. With the others, Spark has to write the files.
CODECS: Final = {
    "snappy": "snappy",
    "none": "none",
    "uncompressed": "none",
    "gzip": "gzip",
    "zstd": "zstd",
    "lz4_raw": "lz4",
}
_CODEC_SETTING: Final = "spark.sql.parquet.compression.codec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """A file that a task has written: records of one partition, between two offsets."""

    partition: int
    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """Where the tasks of one run write."""

    root: Path
    writer: str
    codec: str

    @classmethod
    def in_reach(cls, spark: Any, root: str) -> Self | None:
        """Of an archive, if Python can write to it; what earlier runs have left there is removed."""
        place, codec = local_path(spark, root), CODECS.get(spark.conf.get(_CODEC_SETTING).lower())
        if place is None or codec is None:
            return None
        shutil.rmtree(place / "_incoming", ignore_errors=True)
        return cls(place, uuid.uuid4().hex, codec)

    @property
    def folder(self) -> Path:
        return self.root / "_incoming" / self.writer

    def gather(self, files: Iterable[Filed], name: str) -> None:
        """The files of one batch into a folder of this name, by partition; whatever else tasks have left goes."""
        together = self.root / "_incoming" / name
        shutil.rmtree(together, ignore_errors=True)
        together.mkdir(parents=True)
        for each in files:
            place = together / f"partition={each.partition}"
            place.mkdir(exist_ok=True)
            os.rename(each.path, place / Path(each.path).name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def drop(self, name: str) -> None:
        shutil.rmtree(self.root / "_incoming" / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledSource(TopicSource):
    """Its rows are files, in which the records are."""

    incoming: Incoming

    def read(self, spark: Any) -> Any:
        from moldau.pipelines.parquet_source import CODEC, FOLDER, FilingSource

        spark.dataSource.register(FilingSource)
        reader = spark.read if self.is_bounded else spark.readStream
        options = {**self.read_options(), FOLDER: str(self.incoming.folder), CODEC: self.incoming.codec}
        return reader.format(FilingSource.name()).options(**options).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledSink(ArchiveSink):
    """Takes the files that FiledSource tells of."""

    incoming: Incoming

    def stream(self, frame: Any) -> Any:
        from pyspark.sql.functions import expr

        counted = frame.observe(OBSERVED_ROWS, expr(f"sum(records) as {OBSERVED_ROWS}"))
        return ArchiveSink.stream(self, counted)

    def put(self, frame: Any, batch: int, run: str) -> None:
        floors, ceilings = ({}, {}) if self.held is None else self.held.bounds(batch)
        files = [Filed(**row.asDict()) for row in frame.drop("records").collect()]
        name, spark = f"{run}-{batch}", frame.sparkSession
        if all(
            floors.get(each.partition, 0) <= each.first and each.last < ceilings.get(each.partition, OFFSET_MAX)
            for each in files
        ):
            self.incoming.gather(files, name)
            replace_folder(spark, f"{self.root}/_incoming/{name}", f"{self.root}/run={run}/batch={batch}")
            return
        self.incoming.gather(files, f"{name}-whole")
        whole = spark.read.schema(f"{RECORD}, partition int").parquet(f"{self.root}/_incoming/{name}-whole")
        ArchiveSink.put(self, whole, batch, run)
        self.incoming.drop(f"{name}-whole")
