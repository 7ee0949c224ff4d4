"""The sink with a trap in its tasks: at a named place, the executor of the task is killed."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.types import StructType

from pyspark_moldau.data_source import MoldauSource
from pyspark_moldau.options.sink_options import sink_batch_options, sink_stream_options
from pyspark_moldau.sink.writers import BatchWriter, StreamWriter

STAGING: Final = "staging"  # some rows of the task are staged, others are not
STAGED: Final = "staged"  # all rows are staged, and the driver is not notified yet
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


class ExecutorTrap:
    """Kills the executor of the first task that reaches the place, once, and writes its process id to a file."""

    def __init__(self, options: dict[str, str]) -> None:
        self._plan: dict[str, Any] = json.loads(options["trap"])

    def __call__(self, place: str) -> None:
        batch = TaskContext.get().getLocalProperty("streaming.sql.batchId") or "0"
        if place != self._plan["place"] or int(batch) < self._plan["first_batch"]:
            return
        executor = executor_of(os.getpid())
        try:
            with Path(self._plan["note"]).open("x") as note:
                note.write(str(executor))
        except FileExistsError:
            return
        os.kill(executor, signal.SIGKILL)

    def watching(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            self(STAGING)


def executor_of(pid: int) -> int:
    """Return the process id of the JVM above a Python worker."""
    while pid > 1:
        if _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        # The program name in parentheses may contain any character.
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise RuntimeError("not a worker of an executor")


class TrappedBatchWriter(BatchWriter):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(sink_batch_options(options), schema, overwrite=False)
        self._trap = ExecutorTrap(options)

    def write(self, iterator: Iterator[Any]) -> Any:
        message = super().write(self._trap.watching(iterator))
        self._trap(STAGED)
        return message


class TrappedStreamWriter(StreamWriter):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(sink_stream_options(options), schema)
        self._trap = ExecutorTrap(options)

    def write(self, iterator: Iterator[Any]) -> Any:
        message = super().write(self._trap.watching(iterator))
        self._trap(STAGED)
        return message


class ExecutorTrappedSource(MoldauSource):
    @classmethod
    def name(cls) -> str:
        return "executor-trapped"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: ARG002
        return TrappedBatchWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        return TrappedStreamWriter(self.options, schema)
