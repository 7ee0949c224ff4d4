"""A driver program on a cluster: a stream from topic to topic, then a batch write, while executors are killed."""

import json
import sys
from typing import Any

from trapped_executor import ExecutorTrappedSource

from pyspark_moldau import session


def run(plan: dict[str, Any]) -> None:
    spark = session("cluster", master=plan["master"], settings=plan["settings"])
    spark.dataSource.register(ExecutorTrappedSource)
    stream(spark, plan)
    batch(spark, plan)
    spark.stop()


def stream(spark: Any, plan: dict[str, Any]) -> None:
    read = reading(spark.readStream, plan).option("maxOffsetsPerTrigger", plan["rows_per_batch"]).load()
    rows = read.select("value").repartition("value")  # the shuffle files of a killed executor are lost
    writing = to_topic(rows.writeStream, plan, "stream").option("checkpointLocation", plan["checkpoint"])
    writing.trigger(availableNow=True).start().awaitTermination()


def batch(spark: Any, plan: dict[str, Any]) -> None:
    rows = reading(spark.read, plan).load().select("value")
    writing = to_topic(rows.write, plan, "batch").option("deliveryGuarantee", "exactly-once")
    writing.option("stagingLocation", plan["staging"]).mode("append").save()


def reading(read: Any, plan: dict[str, Any]) -> Any:
    servers = read.format("moldau").option("kafka.bootstrap.servers", plan["servers"])
    return servers.option("subscribe", plan["source"]).option("startingOffsets", "earliest")


def to_topic(write: Any, plan: dict[str, Any], kind: str) -> Any:
    servers = write.format("executor-trapped").option("kafka.bootstrap.servers", plan["servers"])
    return servers.option("topic", plan["targets"][kind]).option("trap", json.dumps(plan["traps"][kind]))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
