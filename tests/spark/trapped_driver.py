"""A driver program: streams from one topic to others, with rows that differ by process, each with a trap."""

import json
import sys
from functools import partial
from typing import Any

from trapped_sink import TrappedSource

from moldau_dev.spark import shaped, until_all_done
from pyspark_moldau import session


def start(spark: Any, plan: dict[str, Any], name: str, shape: str, trap: dict[str, Any] | None = None) -> Any:
    """Start a query of this name; without a trap, it uses the plain sink."""
    frame = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("subscribe", plan["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan["rows_per_batch"])
        .load()
    )
    writing = (
        shaped(frame, shape)
        .writeStream.format("moldau" if trap is None else "trapped")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("topic", f"{plan['source']}.{name}")
        .option("checkpointLocation", f"{plan['checkpoints']}/{name}")
    )
    if trap is not None:
        writing = writing.option("trap", json.dumps({**trap, "name": name, "pipe": plan["pipe"]}))
    return writing.trigger(availableNow=True).start()


def run_driver(plan: dict[str, Any]) -> None:
    spark = session("trapped", master=plan["master"], settings=plan["settings"])
    spark.dataSource.register(TrappedSource)
    until_all_done([partial(start, spark, plan, name, plan["shape"], trap) for name, trap in plan["traps"].items()])


if __name__ == "__main__":
    run_driver(json.loads(sys.argv[1]))
