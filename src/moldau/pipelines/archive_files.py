"""Archives on a local file system: tasks write the Parquet files, the driver moves them into place.

<root>/_incoming/<writer>/   staged files; files that no batch refers to come from failed tasks and are deleted
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

# Spark's codec names and pyarrow's. With any other codec, Spark writes the files.
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
class WrittenFile:
    """A staged file with the records of one partition between two offsets."""

    partition: int
    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """The staging folder of one run."""

    root: Path
    writer: str
    codec: str

    @classmethod
    def if_local(cls, spark: Any, root: str) -> Self | None:
        """Return the staging folder of a local archive, emptied of earlier runs; None for a remote one."""
        place, codec = local_path(spark, root), CODECS.get(spark.conf.get(_CODEC_SETTING).lower())
        if place is None or codec is None:
            return None
        shutil.rmtree(place / "_incoming", ignore_errors=True)
        return cls(place, uuid.uuid4().hex, codec)

    @property
    def folder(self) -> Path:
        return self.root / "_incoming" / self.writer

    def gather(self, files: Iterable[WrittenFile], name: str) -> None:
        """Move the files of a batch to a folder of this name, by partition, and delete all other staged files."""
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
class ParquetFileSource(TopicSource):
    """A topic source whose rows describe the Parquet files that its tasks wrote."""

    incoming: StagingFolder

    def read(self, spark: Any) -> Any:
        from moldau.pipelines.parquet_source import CODEC, FOLDER, ParquetSource

        spark.dataSource.register(ParquetSource)
        reader = spark.read if self.is_bounded else spark.readStream
        options = {**self.read_options(), FOLDER: str(self.incoming.folder), CODEC: self.incoming.codec}
        return reader.format(ParquetSource.name()).options(**options).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFileSink(ArchiveSink):
    """Moves the files that ParquetFileSource reports into the archive."""

    incoming: StagingFolder

    def stream(self, frame: Any) -> Any:
        from pyspark.sql.functions import expr

        counted = frame.observe(OBSERVED_ROWS, expr(f"sum(records) as {OBSERVED_ROWS}"))
        return ArchiveSink.stream(self, counted)

    def put(self, frame: Any, batch: int, run: str) -> None:
        floors, ceilings = ({}, {}) if self.held is None else self.held.bounds(batch)
        files = [WrittenFile(**row.asDict()) for row in frame.drop("records").collect()]
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
