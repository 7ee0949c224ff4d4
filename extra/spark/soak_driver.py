"""A driver program: an endless exactly-once query from topic to topic, whose plan differs from run to run."""

import json
import sys
from typing import Any

from moldau_dev.spark import shaped
from pyspark_moldau import session


def live(plan: dict[str, Any]) -> None:
    spark = session("soak", master=plan["master"], settings=plan["settings"])
    frame = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("subscribe", plan["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan["rows_per_batch"])
        .load()
    )
    query = (
        shaped(frame, plan["shape"])
        .writeStream.format("moldau")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("topic", plan["target"])
        .option("checkpointLocation", plan["checkpoint"])
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    live(json.loads(sys.argv[1]))
