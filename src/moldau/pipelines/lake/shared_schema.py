"""The schema that all tasks of a lake job share: a file beside the table, extended under a lock.

Two tasks that see a new field at the same time must not give it two types. The first one adds it; rows that do not fit
are incompatible for all others. The table itself gets the columns when a file that has them is committed.
"""

import base64
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from moldau.pipelines.lake.column_types import merged_schema


@dataclass(frozen=True, slots=True)
class SharedSchema:
    """The file with the schema of the value's fields."""

    path: str

    def read(self) -> pa.Schema:
        try:
            text = Path(self.path).read_bytes()
        except FileNotFoundError:
            return pa.schema([])
        return schema_of_text(text)

    def extend(self, seen: pa.Schema) -> pa.Schema:
        """Add the fields that are new, and return the whole schema. Raises IncompatibleTypes."""
        with self._locked():
            known = self.read()
            merged = merged_schema(known, seen)
            if merged != known:
                fresh = Path(f"{self.path}.{os.getpid()}.new")
                fresh.write_bytes(schema_text(merged))
                os.replace(fresh, self.path)
        return merged

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(f"{self.path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def schema_text(schema: pa.Schema) -> bytes:
    return base64.b64encode(schema.serialize().to_pybytes())


def schema_of_text(text: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
