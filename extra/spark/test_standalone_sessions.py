"""A plain PySpark session, in a process of its own."""

import os
import subprocess
import sys

from moldau.testing.broker import Broker

PLAIN_SCRIPT = """
import sys

import pyspark_moldau
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
source = spark.read.format("moldau").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
print(source.load().count())
"""


def test_plain_session_finds_the_source_without_an_activated_environment(moldau_broker: Broker, topic: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")}
    script = subprocess.run(
        [sys.executable, "-c", PLAIN_SCRIPT, moldau_broker.bootstrap_servers, topic],
        env={**environment, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert script.stdout.split() == ["0"], script.stderr
