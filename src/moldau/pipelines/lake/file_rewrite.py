"""Files of a table that a commit replaces: those with rows of changed keys, and small ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moldau.pipelines.lake.layout import KEY

_GROUP_FILES_MIN: Final = 2


def rows_without(path: Path, keys: pa.Array) -> pa.Table | None:
    """Return the rows of a file whose keys are others; None if none of the keys is in the file."""
    found = pq.ParquetFile(path).read(columns=[KEY]).column(KEY)
    is_changed = pc.is_in(found, value_set=keys.cast(found.type))
    if not pc.any(is_changed).as_py():
        return None
    return pq.ParquetFile(path).read().filter(pc.invert(is_changed))


def small_groups(sizes: Mapping[str, int], partitions: Mapping[str, str], file_bytes: int) -> list[list[str]]:
    """Return groups of small files of one partition, each of about the target size."""
    groups: list[list[str]] = []
    by_partition: dict[str, list[str]] = {}
    for path in sorted(sizes):
        if sizes[path] < file_bytes // 2:
            by_partition.setdefault(partitions[path], []).append(path)
    for paths in by_partition.values():
        groups += _filled(paths, sizes, file_bytes)
    return [each for each in groups if len(each) >= _GROUP_FILES_MIN]


def _filled(paths: list[str], sizes: Mapping[str, int], file_bytes: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    size = 0
    for path in paths:
        if groups[-1] and size + sizes[path] > file_bytes:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += sizes[path]
    return groups
