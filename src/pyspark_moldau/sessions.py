"""A Spark session with Java found, good defaults, and this package on every executor."""

import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import moldau
import pyspark_moldau
from pyspark_moldau.java import ensure_java

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


def session(
    app_name: str = "moldau", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, or on a cluster if `master` says so. `settings` are Spark's own and win."""
    ensure_java()
    chosen = master or _LOCAL
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(chosen)
    for name, value in {**_DEFAULTS, "spark.sql.shuffle.partitions": str(_cores(chosen)), **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not chosen.startswith("local[") and chosen != "local":
        spark.sparkContext.addPyFile(str(packed()))
    return spark


def packed() -> Path:
    """Both packages in one archive, for executors on which nothing of us is installed."""
    archive = Path(tempfile.mkdtemp(prefix="moldau-spark-")) / "moldau.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for package in (moldau, pyspark_moldau):
            root = Path(str(package.__file__)).parent
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    out.write(path, path.relative_to(root.parent))
    return archive


def _cores(master: str) -> int:
    """Shuffles in as many parts as there are cores here: the default of 200 is for machines of another size."""
    words = master.removeprefix("local[").removesuffix("]").split(",")[0]
    return int(words) if words.isdecimal() else os.cpu_count() or 1
