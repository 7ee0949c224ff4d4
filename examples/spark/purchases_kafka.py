"""Write the purchases of a clickstream to a separate topic, then count them by page: a stream and a batch.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 purchases_kafka.py --topic clicks

Uses Spark's own connector, as with any Kafka cluster. It is a jar whose version must be that of Spark (here 4.3.0).
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

FORMAT = "kafka"
EVENT = "event_id string, user string, kind string, page string, at string"

parser = argparse.ArgumentParser(description="Purchases of a clickstream.")
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--to", default="purchases")
parser.add_argument("--checkpoint", default="/tmp/purchases-checkpoint")
arguments = parser.parse_args()

spark = SparkSession.builder.appName("purchases").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

clicks = (
    spark.readStream.format(FORMAT)
    .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
    .option("subscribe", arguments.topic)
    .option("startingOffsets", "earliest")
    .load()
)
purchases = clicks.where(from_json(col("value").cast("string"), EVENT)["kind"] == "purchase").select("key", "value")
query = (
    purchases.writeStream.format(FORMAT)
    .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
    .option("topic", arguments.to)
    .option("checkpointLocation", arguments.checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

written = (
    spark.read.format(FORMAT)
    .option("kafka.bootstrap.servers", arguments.bootstrap_servers)
    .option("subscribe", arguments.to)
    .load()
)
pages = written.select(from_json(col("value").cast("string"), EVENT)["page"].alias("page"))
for row in pages.groupBy("page").count().orderBy(col("count").desc(), "page").collect():
    print(f"{row['count']:8,}  {row['page']}")
