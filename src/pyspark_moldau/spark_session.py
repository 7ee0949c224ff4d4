"""Creates Spark sessions with Java located, suitable defaults, and this package on every executor."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from pyspark_moldau.interpreter import worker_python
from pyspark_moldau.java import ensure_java
from pyspark_moldau.package_archive import build_package_archive

_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = "local[*]"
_LOCAL_MASTER: Final = re.compile(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?")


def session(
    app_name: str = "moldau", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Create a local session, or one on the cluster of `master`. `settings` override all defaults."""
    ensure_java()
    chosen = master or _LOCAL
    if chosen.startswith("local") and os.environ.get("PYSPARK_PYTHON") in (None, sys.executable):
        # Workers run on this machine; a launcher of the same interpreter starts them faster.
        os.environ["PYSPARK_PYTHON"] = worker_python()
    builder = SparkSession.builder.appName(app_name).master(chosen)
    for name, value in {**_DEFAULTS, **_local_settings(chosen), **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not _LOCAL_MASTER.fullmatch(chosen):
        spark.sparkContext.addPyFile(str(build_package_archive()))
    return spark


def _local_settings(master: str) -> dict[str, str]:
    """Set one shuffle partition per core; Spark's default of 200 is too many for a single machine."""
    found = _LOCAL_MASTER.fullmatch(master)
    if found is None:
        return {}
    cores = found[1] or "1"
    return {"spark.sql.shuffle.partitions": cores if cores.isdecimal() else str(os.cpu_count() or 1)}
