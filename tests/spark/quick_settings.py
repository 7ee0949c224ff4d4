"""Settings for sessions that start and write checkpoints quickly. The behaviour is that of Spark's default settings.

Java runs for seconds and loads twenty thousand trusted classes, so bytecode verification is off. For each file of a
checkpoint, Spark's default manager starts ten programs, which check links and set permissions; the file-system based
manager starts two. Both write a temporary file and rename it.
"""

from collections.abc import Mapping
from typing import Final

from moldau_dev import spark

JAVA_OPTIONS: Final = (
    f"{spark.JAVA_OPTIONS} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:MetaspaceSize=192m "
    "-Djdk.lang.Process.launchMechanism=VFORK"
)
_QUICK: Final = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
SETTINGS: Final[Mapping[str, str]] = {**spark.SETTINGS, **_QUICK}
DRIVER_SETTINGS: Final[Mapping[str, str]] = {**spark.DRIVER_SETTINGS, **_QUICK}
