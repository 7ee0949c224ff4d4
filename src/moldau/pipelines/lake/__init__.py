"""Topics as tables: Delta Lake, Apache Iceberg and plain Parquet, each batch committed exactly once."""
