"""The sink with a trap: at a place of the commit protocol, the committing process stops itself."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType
from spark_drivers import report

from pyspark_moldau.data_source import MoldauSource
from pyspark_moldau.options.sink_options import sink_stream_options
from pyspark_moldau.sink.transaction_commit import BatchCommitters
from pyspark_moldau.sink.writers import StreamWriter


class Trap:
    """Stops the process at the first pass of its place from a given batch on, and reports it."""

    def __init__(self) -> None:
        self.plan: dict[str, Any] = {}
        self.batch = -1

    def __call__(self, place: str) -> None:
        if place != self.plan.get("place") or self.batch < self.plan["first_batch"]:
            return
        plan, self.plan = self.plan, {}
        if plan["is_spared"]:
            os.setpgid(0, 0)  # not killed with the driver's process group
        report(plan["pipe"], plan["name"], place, self.batch, plan["is_spared"])
        os.kill(os.getpid(), signal.SIGSTOP)


TRAP = Trap()
PUBLISHERS = BatchCommitters(TRAP)


class TrappedWriter(StreamWriter):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(sink_stream_options(options), schema)
        self._plan = json.loads(options["trap"])

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        TRAP.plan, TRAP.batch = self._plan, batchId
        if "commits" in self._plan:
            with Path(self._plan["commits"]).open("a") as commits:
                commits.write(f"{batchId} {len(messages)}\n")
        super().commit(messages, batchId)
        TRAP("returned")

    def committers(self) -> BatchCommitters:
        return PUBLISHERS


class TrappedSource(MoldauSource):
    @classmethod
    def name(cls) -> str:
        return "trapped"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        return TrappedWriter(self.options, schema)
