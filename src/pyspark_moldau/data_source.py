"""The data source that Spark loads for `format("moldau")`: it parses the options and creates readers and writers."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_moldau.codec import columns
from pyspark_moldau.options.source_options import batch_options, includes_headers, stream_options
from pyspark_moldau.source.readers import BatchReader, StreamReader


class MoldauSource(DataSource):
    """Topics as tables: the options and columns of `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        return "moldau"

    def schema(self) -> str:
        return columns.ddl(with_headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return BatchReader(batch_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return StreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_moldau.options.sink_options import sink_batch_options
        from pyspark_moldau.sink.writers import BatchWriter

        return BatchWriter(sink_batch_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from pyspark_moldau.options.sink_options import sink_stream_options
        from pyspark_moldau.sink.writers import StreamWriter

        return StreamWriter(sink_stream_options(self.options), schema)
