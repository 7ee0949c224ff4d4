"""Opens lake tables by format and place."""

import enum
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moldau.pipelines.lake.lake_table import LakeTable
from moldau.pipelines.lake.layout import Layout
from moldau.pipelines.requirements import PipelineError

_PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg", "parquet": "pyarrow"}


class TableFormat(enum.Enum):
    """The formats of tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


def folder_of(table: str, catalog: str | None) -> Path | None:
    """Return the local folder of a table; None if a catalog chooses it."""
    if catalog is not None:
        return None
    if "://" in table and not table.startswith("file://"):
        raise PipelineError(f"--table {table}: the tasks need a local or mounted folder")
    return Path(table.removeprefix("file://")).absolute()


def open_table(
    kind: TableFormat, table: str, layout: Layout, catalog: str | None = None, options: Mapping[str, str] | None = None
) -> LakeTable:
    """Return a table; it need not exist."""
    require_package(kind)
    if catalog is not None:
        if kind is not TableFormat.ICEBERG:
            raise PipelineError(f"--catalog is for Iceberg; a {kind.value} table is a folder")
        from moldau.pipelines.lake.iceberg_table import IcebergLakeTable, IcebergPlace

        return IcebergLakeTable(IcebergPlace(catalog=catalog_of(catalog, options or {}), name=name_of(table)), layout)
    folder = folder_of(table, catalog)
    assert folder is not None
    return _in_folder(kind, folder, layout)


def _in_folder(kind: TableFormat, folder: Path, layout: Layout) -> LakeTable:
    match kind:
        case TableFormat.DELTA:
            from moldau.pipelines.lake.delta_table import DeltaLakeTable

            return DeltaLakeTable(folder, layout)
        case TableFormat.ICEBERG:
            from moldau.pipelines.lake.iceberg_table import IcebergLakeTable, IcebergPlace

            return IcebergLakeTable(IcebergPlace.embedded(folder), layout)
        case TableFormat.PARQUET:
            from moldau.pipelines.lake.parquet_table import ParquetLakeTable

            return ParquetLakeTable(folder, layout)


def catalog_of(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return pyiceberg's settings for a catalog: SQL, REST or Hive, by the scheme of its URI."""
    scheme = uri.partition(":")[0]
    kinds = {"http": "rest", "https": "rest", "thrift": "hive"}
    return {"type": kinds.get(scheme, "sql"), "uri": uri, **options}


def name_of(table: str) -> tuple[str, ...]:
    parts = tuple(table.split("."))
    if len(parts) < 2 or not all(parts):
        raise PipelineError(f"--table {table}: with --catalog, name a namespace and a table, such as shop.clicks")
    return parts


def require_package(kind: TableFormat) -> None:
    package = _PACKAGES[kind.value]
    if importlib.util.find_spec(package) is None:
        raise PipelineError(
            f"tables of this format need {package}; install Moldau with its lake extra (docs/install.md)"
        )
