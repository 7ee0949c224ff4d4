"""One life of a driver, without Spark: it stages and commits batches, and dies or stands still where it is told to.

It prints what happens, a line each: `at <place>`, `published <batch>`, `skipped <batch>`, `failed <error>: <words>`.
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
    """Falls at the `times`-th passing of a place, in one batch. `later_s` lets the process run on a little."""

    def __init__(self, place: str, batch: int, how: str, times: int = 1, later_s: float = 0.0) -> None:
        self._place, self._batch, self._times = place, batch, times
        self._signal, self._later_s = SIGNALS[how], later_s
        self.batch = -1

    def __call__(self, place: str) -> None:
        if place != self._place or self.batch != self._batch:
            return
        self._times -= 1
        if self._times == 0:
            say(f"at {place}")
            self._fall()

    def _fall(self) -> None:
        if self._later_s:
            threading.Thread(target=self._die_later, daemon=True).start()
        else:
            os.kill(os.getpid(), self._signal)

    def _die_later(self) -> None:
        time.sleep(self._later_s)  # any moment will do: either outcome is right, and both are looked for
        os.kill(os.getpid(), self._signal)


def say(line: str) -> None:
    print(line, flush=True)


def rows_of(batch: int, rows: int, life: str) -> list[tuple[bytes, bytes]]:
    """The same rows in every life, but for a mark of the life: as a query with `uuid()` has them."""
    return [(b"%d-%d" % (batch, row), f"{batch}:{row}:{life}:{'x' * (row % 50)}".encode()) for row in range(rows)]


def staged(options: SinkOptions, plan: dict[str, Any], batch: int) -> list[StagedBatches]:
    """Rows and tasks are mixed anew in each life."""
    chance = random.Random(f"{plan['life']}/{batch}")
    rows = rows_of(batch, plan["rows"], plan["life"])
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


def live(plan: dict[str, Any]) -> None:
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
        threading.Event().wait(60)  # it dies in a moment


def commit(
    parts: list[StagedBatches], committers: BatchCommitters, options: SinkOptions, identity: BatchIdentity
) -> bool:
    """As Spark does it: when `commit` fails, `abort` follows, and the query ends."""
    try:
        is_new = committers.commit(options, identity, parts)
    except Exception as error:
        for part in parts:
            part.delete()
        say(f"failed {type(error).__name__}: {error}")
        return False
    say(f"{'published' if is_new else 'skipped'} {identity.batch}")
    return True


if __name__ == "__main__":
    live(json.loads(sys.argv[1]))
