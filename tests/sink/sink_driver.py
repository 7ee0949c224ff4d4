"""A driver process without Spark: it stages and commits batches, and kills or stops itself at a given trap.

It prints one line per event: `at <place>`, `published <batch>`, `skipped <batch>`, `failed <error>: <message>`.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from pyspark_moldau.options.sink_options import BatchIdentity, SinkOptions, sink_stream_options
from pyspark_moldau.sink.batch_builder import staging_batches
from pyspark_moldau.sink.records import to_records
from pyspark_moldau.sink.staged_batches import StagedBatches, stage
from pyspark_moldau.sink.transaction_commit import BatchCommitters, ignore_step

SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Trap:
    """Signals its own process when one batch reaches a place for the `times`-th time, or `later_s` later."""

    def __init__(self, place: str, batch: int, how: str, times: int = 1, later_s: float = 0.0) -> None:
        self._place, self._batch, self._times = place, batch, times
        self._signal, self._later_s = SIGNALS[how], later_s
        self.batch = -1

    def __call__(self, place: str) -> None:
        if place != self._place or self.batch != self._batch:
            return
        self._times -= 1
        if self._times == 0:
            emit(f"at {place}")
            self._trigger()

    def _trigger(self) -> None:
        if self._later_s:
            threading.Thread(target=self._kill_later, daemon=True).start()
        else:
            os.kill(os.getpid(), self._signal)

    def _kill_later(self) -> None:
        time.sleep(self._later_s)  # a kill at any point of the commit is valid
        os.kill(os.getpid(), self._signal)


def emit(line: str) -> None:
    print(line, flush=True)


def rows_of(batch: int, rows: int, driver: str) -> list[tuple[bytes, bytes]]:
    """Rows that differ by process only in the process's name, like those of a query with `uuid()`."""
    return [(b"%d-%d" % (batch, row), f"{batch}:{row}:{driver}:{'x' * (row % 50)}".encode()) for row in range(rows)]


def staged(options: SinkOptions, plan: dict[str, Any], batch: int) -> list[StagedBatches]:
    """Stage the rows of a batch. Each process distributes them differently over tasks."""
    chance = random.Random(f"{plan['driver']}/{batch}")
    rows = rows_of(batch, plan["rows"], plan["driver"])
    chance.shuffle(rows)
    tasks = plan["tasks"] + chance.randrange(2)
    parts = []
    for task in range(tasks):
        with staging_batches(_records(rows[task::tasks], options), options) as ready:
            part = stage(
                ready,
                options.staging,
                BatchIdentity(plan["writer"], batch),
                task,
                attempt=chance.randrange(1_000_000),
                inline_bytes_max=plan["inline_bytes_max"],
            )
        parts.append(part)
    return parts


def _records(rows: list[tuple[bytes, bytes]], options: SinkOptions) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), 40):
        keys, values = zip(*rows[start : start + 40], strict=True)
        yield from to_records(pa.RecordBatch.from_pydict({"key": keys, "value": values}), options)


def run(plan: dict[str, Any]) -> None:
    options = sink_stream_options(
        {
            "kafka.bootstrap.servers": plan["servers"],
            "topic": plan["topic"],
            "stagingLocation": plan["staging"],
            "sender": plan["sender"],
        }
    )
    trap = Trap(**plan["trap"]) if plan["trap"] else None
    committers = BatchCommitters(trap or ignore_step)
    for batch in plan["batches"]:
        if trap is not None:
            trap.batch = batch
        if not commit(staged(options, plan, batch), committers, options, BatchIdentity(plan["writer"], batch)):
            return
    if trap is not None and plan["trap"].get("later_s"):
        threading.Event().wait(60)  # until the trap kills the process


def commit(
    parts: list[StagedBatches], committers: BatchCommitters, options: SinkOptions, identity: BatchIdentity
) -> bool:
    """Commit like Spark: if `commit` fails, `abort` follows and the query ends."""
    try:
        is_new = committers.commit(options, identity, parts)
    except Exception as error:
        for part in parts:
            part.delete()
        emit(f"failed {type(error).__name__}: {error}")
        return False
    emit(f"{'published' if is_new else 'skipped'} {identity.batch}")
    return True


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
