"""Sessions that are quick to start and to write their checkpoints. What tests prove is the same with Spark's settings.

Java runs for seconds here, and loads twenty thousand classes from where Spark was installed: they are not verified. For
each file of a checkpoint Spark starts ten programs, which ask for links and set permissions; with the other of its
managers of such files, two. Either writes a file beside its place, and renames it.
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
