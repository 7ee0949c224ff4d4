"""Kills the driver of a lake job at named points, for each format, and lets another one repeat its batch.

A program of its own, because a child that is forked before any library has started a thread costs little. Prints a JSON
line per case: what the killed driver had done, the table after the replay, and the files that nothing refers to.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import deltalake
import pyiceberg.table
from lake_scene import WRITER, Scene, objects, records

from moldau.pipelines.lake import lake_sink, parquet_table, rows
from moldau.pipelines.lake.lake_table import BatchId
from moldau.pipelines.lake.layout import Mode, ValueFormat
from moldau.pipelines.lake.maintenance import Maintenance
from moldau.pipelines.lake.tables import TableFormat

POINTS: Final = ("before write", "after files", "before commit", "after commit", "during compaction")
KILLED: Final = -signal.SIGKILL
MAINTENANCE: Final = Maintenance(file_bytes=1_000_000, keep_s=0, orphan_s=0)


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def scene_of(kind: TableFormat, folder: Path, mode: Mode) -> Scene:
    return Scene(kind, folder, value=ValueFormat.JSON, mode=mode, by=("day",))


def put(scene: Scene, number: int) -> None:
    values = objects(*({"n": 10 * number + each} for each in range(10)))
    keys = [b"k%d" % (number + each) for each in range(10)]
    tasks = [[records(values[:5], 5 * number, keys[:5], 0)], [records(values[5:], 5 * number, keys[5:], 1)]]
    scene.sink.put(scene.frame(*tasks), BatchId(WRITER, number))


def before(owner: Any, name: str) -> None:
    """Kill the process when it calls the function."""
    setattr(owner, name, die)


def after(owner: Any, name: str) -> None:
    """Kill the process when the function has returned."""
    plain: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        die()

    setattr(owner, name, call)


def set_trap(point: str, kind: TableFormat, mode: Mode) -> None:
    match point, kind:
        case "before write", _:
            before(rows.RowBuilder, "build")
        case "after files", _:
            before(lake_sink.LakeSink, "_commit")
        case _, TableFormat.ICEBERG:
            (after if point == "after commit" else before)(pyiceberg.table.Table, "_do_commit")
        case _, TableFormat.PARQUET:  # the journal is written first, its moves follow
            (after if point == "after commit" else before)(parquet_table.ParquetLakeTable, "_write")
        case "during compaction", TableFormat.DELTA:
            before(deltalake.table.TableOptimizer, "compact")
        case _, TableFormat.DELTA if mode is Mode.UPSERT:
            (after if point == "after commit" else before)(deltalake.table.TableMerger, "execute")
        case _, TableFormat.DELTA:
            (after if point == "after commit" else before)(deltalake.DeltaTable, "create_write_transaction")


def forked(work: Callable[[], object]) -> tuple[int, str]:
    """Run work in a child; return its exit code, negative for a signal, and what it returned as JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(work()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def trapped(point: str, kind: TableFormat, folder: Path, mode: Mode) -> None:
    scene = scene_of(kind, folder, mode)
    for number in range(2):
        put(scene, number)
    set_trap(point, kind, mode)
    if point == "during compaction":
        MAINTENANCE.run(scene.table)
    put(scene, 2)


def repeated(kind: TableFormat, folder: Path, mode: Mode) -> dict[str, Any]:
    """Repeat the batch, maintain the table, repeat the batch again."""
    scene = scene_of(kind, folder, mode)
    last = scene.table.last_batch(WRITER)
    put(scene, 2)
    MAINTENANCE.run(scene.table)
    put(scene, 2)
    found = [(row["_partition"], row["_offset"], row["_key"], row["n"]) for row in scene.rows()]
    unknown = MAINTENANCE.run(scene.table).orphans
    return {"last": last, "rows": found, "orphans": unknown}


def case(point: str, kind: TableFormat, folder: Path, mode: Mode) -> dict[str, Any]:
    started_s = time.monotonic()
    code, _ = forked(lambda: trapped(point, kind, folder, mode))
    _, text = forked(lambda: repeated(kind, folder, mode))
    names = {"point": point, "kind": kind.value, "mode": mode.value, "is_killed": code == KILLED}
    return {**names, **json.loads(text or "{}"), "seconds": time.monotonic() - started_s}


def main(folder: Path, cases: list[list[str]]) -> None:
    for number, (point, kind, mode) in enumerate(cases):
        found = case(point, TableFormat(kind), folder / str(number), Mode(mode))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
