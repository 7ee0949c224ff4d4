"""A driver program: a stream from a topic to a topic, with rows that differ from life to life, until a trap falls."""

import json
import os
import sys
from typing import Any

from trapped_sink import TrappedSource

from pyspark_moldau import session


def live(plan: dict[str, Any]) -> None:
    spark = session("trapped", master=plan["master"], settings=plan["settings"])
    spark.dataSource.register(TrappedSource)
    frame = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("subscribe", plan["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan["rows_per_batch"])
        .load()
        .selectExpr("value", "uuid() as key")
        .repartition("key")
    )
    query = (
        frame.writeStream.format("trapped")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("topic", plan["target"])
        .option("trap", json.dumps({**plan["trap"], "group": os.getpgid(0)}))
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    live(json.loads(sys.argv[1]))
