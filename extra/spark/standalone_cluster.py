"""A Spark cluster of processes on this machine, from the PySpark package alone: a master and its workers."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

START_S_MAX: Final = 180.0
STOP_S_MAX: Final = 60.0
LOOK_S: Final = 0.1
HOST: Final = "127.0.0.1"
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master")


class Standalone:
    """`with Standalone(folder, workers=2) as cluster:`, one core and 1 GiB for each worker."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def workers_that_ran(self, application: str) -> list[str]:
        """Those on which this application has had an executor; `application` is part of what its executors said."""
        found = []
        for number in range(self._workers):
            words = (self._folder / f"worker-{number}").glob("app-*/*/stderr")
            if any(application in each.read_text(errors="replace") for each in words):
                found.append(f"worker-{number}")
        return found

    def _start(self) -> None:
        master = self._launch("master", "master.Master", "--port", "0")
        self.master = self._await(master, _MASTER, "master")[1]
        for number in range(self._workers):
            folder = self._folder / f"worker-{number}"
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder), self.master]
            process = self._launch(f"worker-{number}", "worker.Worker", *options)
            self._await(process, _REGISTERED, f"worker-{number}")

    def _launch(self, name: str, role: str, *options: str) -> "subprocess.Popen[bytes]":
        import pyspark

        from pyspark_moldau.java import ensure_java

        ensure_java()
        home = Path(str(pyspark.__file__)).parent
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{role}",
                    "--host",
                    HOST,
                    "--webui-port",
                    "0",
                    *options,
                ],
                env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _await(self, process: "subprocess.Popen[bytes]", words: re.Pattern[str], name: str) -> re.Match[str]:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline and process.poll() is None:
            found = words.search(self._log(name).read_text(errors="replace"))
            if found is not None:
                return found
            time.sleep(LOOK_S)  # its log is looked at again
        raise AssertionError(f"{name} did not start:\n{self._log(name).read_text(errors='replace')[-4000:]}")

    def _stop(self) -> None:
        """Workers first: they end their executors."""
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
