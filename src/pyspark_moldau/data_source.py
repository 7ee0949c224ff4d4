"""The data source that Spark loads for `format("moldau")`: it parses the options and creates readers and writers."""

from collections.abc import Mapping

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
from pyspark_moldau.options.value_options import value_options
from pyspark_moldau.source.readers import BatchReader, StreamReader, ValueDecoder


class MoldauSource(DataSource):
    """Topics as tables: the options and columns of `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        return "moldau"

    def schema(self) -> str | StructType:
        decoder, with_headers = value_decoder(self.options), includes_headers(self.options)
        return (
            columns.ddl(with_headers=with_headers) if decoder is None else decoder.row_type(with_headers=with_headers)
        )

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return BatchReader(batch_options(self.options), value_decoder(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return StreamReader(stream_options(self.options), value_decoder(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_moldau.options.sink_options import sink_batch_options
        from pyspark_moldau.sink.writers import BatchWriter

        return BatchWriter(sink_batch_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from pyspark_moldau.options.sink_options import sink_stream_options
        from pyspark_moldau.sink.writers import StreamWriter

        return StreamWriter(sink_stream_options(self.options), schema)


def value_decoder(options: Mapping[str, str]) -> ValueDecoder | None:
    """Return what decodes values, if the options want it; only then are the schema libraries needed."""
    wanted = value_options(options)
    if wanted is None:
        return None
    from pyspark_moldau.schemas.value_columns import ValueColumns

    return ValueColumns.of(wanted)
