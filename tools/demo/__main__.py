"""The whole demo: `make demo`, or with PYTHONPATH=tools, `python -m demo --help`."""

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo.children import Children
from demo.pipeline_state import OPEN, Lags, batches, transaction_state, transactional_id
from demo.result_check import Found, Made, look
from moldau.cli.cluster_client import connect
from moldau.client.blocking_client import BlockingClient
from moldau.client.types import NewTopic
from moldau.model.errors import KafkaError

ROOT: Final = Path(__file__).parents[2]
MOLDAU: Final = (sys.executable, "-m", "moldau.cli.main")
TOPIC: Final = "clicks"
NAME: Final = "activity-clicks"
PARTITIONS: Final = 6
BROKERS: Final = 3
CONTROLLER_PORTS_APART: Final = 10_000
PORTS: Final = range(19_092, 22_000, 10)
FIRST_CORES, SECOND_CORES = 2, 3
EVENTS_PER_S: Final = 1000.0  # in the time of the events: a million of them are a quarter of an hour
STEP_S_MAX: Final = 600.0
LOOK_S: Final = 0.005
LAG_EVERY_S: Final = 2.0
KILLS_MAX: Final = 3


class Failed(Exception):
    """The demo cannot continue, or its result is wrong."""


@dataclass(slots=True)
class Demo:
    """One demo run, in a temporary folder."""

    events: int
    rows_per_batch: int
    folder: Path
    report: Path
    children: Children
    begun_s: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun_s:5.0f} s  {text}", flush=True)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "pipelines" / NAME / "checkpoint" / "clean"

    def run(self) -> bool:
        servers = self._start_cluster()
        with connect(servers) as client:
            made = self._fill(client, servers)
            begun_s = time.monotonic()
            self._kill_in_the_middle(client, servers)
            self.say(f"the same with --master local[{SECOND_CORES}]: it goes on where it was")
            process = self._start_pipeline(servers, SECOND_CORES)
            self._await_end(client, process)
            took_s = time.monotonic() - begun_s
        self._stop(process)
        found = look(servers, f"{TOPIC}.activity", self.folder / "pipelines" / NAME / "lake", made)
        self._tell(made, found, took_s)
        return found.is_right(made)

    def _start_cluster(self) -> str:
        port = free_port()
        words = ("up", "--brokers", str(BROKERS), "--data", str(self.folder / "cluster"), "--port", str(port), "-q")
        process = self.children.start("cluster", [*MOLDAU, *words])
        assert process.stdout is not None
        if not process.stdout.readline():
            raise Failed(f"the cluster did not start: {self.children.words_of('cluster')}")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        servers = ",".join(f"localhost:{port + index}" for index in range(BROKERS))
        self.say(f"{BROKERS} brokers serve on {servers}")
        return servers

    def _fill(self, client: BlockingClient, servers: str) -> Made:
        for outcome in client.create_topics([NewTopic(TOPIC, PARTITIONS, BROKERS)]):
            if outcome.error is not None:
                raise outcome.error
        words = ("--bootstrap-servers", servers, "--topic", TOPIC, "--events", str(self.events), "--json")
        rate = ("--events-per-s", str(EVENTS_PER_S))
        program = str(ROOT / "examples" / "activity" / "clickstream.py")
        process = self.children.start("clickstream", [sys.executable, program, *words, *rate])
        output, _ = process.communicate(timeout=STEP_S_MAX)
        if process.returncode:
            raise Failed(f"the clickstream failed: {self.children.words_of('clickstream')}")
        made = Made(**json.loads(output))
        self.say(
            f"{made.events:,} events are in {TOPIC} on all {BROKERS} brokers, {made.late:,} of them late, "
            f"{made.records / made.seconds:,.0f} records/s"
        )
        self.say(f"on top of them, on purpose: {made.repeated:,} repetitions, {made.broken:,} broken records")
        return made

    def _start_pipeline(self, servers: str, cores: int) -> "subprocess.Popen[str]":
        words = ("pipeline", "run", "activity", "--topic", TOPIC, "--bootstrap-servers", servers, "--json")
        where = (
            "--folder",
            str(self.folder / "pipelines"),
            "--report",
            str(self.report),
            "--master",
            f"local[{cores}]",
        )
        rate = ("--rows-per-batch", str(self.rows_per_batch), "--partitions", str(PARTITIONS))
        process = self.children.start("pipeline", [*MOLDAU, *words, *where, *rate])
        assert process.stdout is not None
        threading.Thread(target=_drained, args=(process.stdout,), daemon=True).start()
        return process

    def _kill_in_the_middle(self, client: BlockingClient, servers: str) -> None:
        """Kill the pipeline while it publishes the second batch or a later one; retry a kill that was too late."""
        self.say(f"moldau pipeline run activity --topic {TOPIC} --master local[{FIRST_CORES}]")
        for _ in range(KILLS_MAX):
            process = self._start_pipeline(servers, FIRST_CORES)
            self._await_open_transaction(client, process)
            self.children.kill(process)
            seen, state = batches(self.checkpoint), transaction_state(client, self._transactional_id())
            if seen.is_in_the_middle:
                self.say(
                    f"SIGKILL in the middle of batch {seen.begun}: {seen.finished + 1} finished, and its transaction "
                    + ("is open" if state == OPEN else f"is in state {state}")
                )
                return
            self.say(f"killed between batches {seen.finished} and {seen.finished + 1}: that was too late, once more")
        raise Failed(f"{KILLS_MAX} kills came between two batches")

    def _transactional_id(self) -> str:
        return transactional_id(self.checkpoint) or ""

    def _await_open_transaction(self, client: BlockingClient, process: "subprocess.Popen[str]") -> None:
        before = max(batches(self.checkpoint).finished, 0)
        for _ in self._looks(process, LOOK_S):
            is_late_enough = batches(self.checkpoint).finished >= before
            if is_late_enough and transaction_state(client, self._transactional_id()) == OPEN:
                return

    def _await_end(self, client: BlockingClient, process: "subprocess.Popen[str]") -> None:
        """Wait until no group has lag, and print the lag meanwhile."""
        events = f"{TOPIC}.activity.events"
        groups = {"clean": (NAME, TOPIC)}
        groups |= {part: (f"{NAME}-{part}", events) for part in ("counts", "sessions", "load", "lake")}
        lags, printed = Lags(client, groups), ""
        for _ in self._looks(process, LAG_EVERY_S):
            try:
                now = lags.now()
            except KafkaError:
                continue  # the coordinator is being looked up: the next poll decides
            line = "lag  " + " · ".join(f"{name} {behind:,}" for name, behind in now.items())
            if line != printed:
                self.say(line)
            printed = line
            if not any(now.values()):
                return

    def _looks(self, process: "subprocess.Popen[str]", every_s: float) -> Iterator[None]:
        """Poll while the pipeline runs."""
        deadline_s = time.monotonic() + STEP_S_MAX
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise Failed(f"the pipeline has ended: {self.children.words_of('pipeline')}")
            yield
            time.sleep(every_s)
        raise Failed(
            f"no progress for {STEP_S_MAX:.0f} s; the pipeline's last output: " + self.children.words_of("pipeline")
        )

    def _stop(self, process: "subprocess.Popen[str]") -> None:
        self.say("nothing is left to do; SIGTERM: it ends in order and writes its report")
        code = self.children.end(process, STEP_S_MAX)
        if code or not self.report.exists():
            raise Failed(f"the pipeline ended with {code}: {self.children.words_of('pipeline')}")

    def _tell(self, made: Made, found: Found, took_s: float) -> None:
        self.say("read back with read_committed, every event by its number:")
        print(f"\n    in {made.events:,} · out {found.out:,} · twice {found.twice:,} · lost {found.lost:,}\n")
        kept = made.repeated - found.twice
        print(f"    repetitions  {made.repeated:,} put in, {kept:,} left out")
        print(f"    broken       {made.broken:,} put in, {found.dead_letters:,} in the dead letters with their reason")
        print(f"    lake         {found.lake:,} rows of Parquet")
        if found.strangers:
            print(f"    strangers    {found.strangers:,} events that were never produced")
        print(f"    speed        {made.records / took_s:,.0f} records/s, with the kill and two starts of Spark")
        print(f"    report       {self.report}\n")


def _drained(pipe: Any) -> None:
    """Drain the output, so that the pipeline never blocks on a full pipe."""
    with suppress(ValueError, OSError):  # closed when the process is stopped
        for _ in pipe:
            pass


def free_port() -> int:
    """Return the first port of a free range for brokers and controllers."""
    for port in PORTS:
        wanted = [first + index for first in (port, port + CONTROLLER_PORTS_APART) for index in range(BROKERS)]
        if all(_is_free(each) for each in wanted):
            return port
    raise Failed(f"no {BROKERS} ports in a row are free from {PORTS.start} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def temporary_demo(events: int, rows_per_batch: int, report: Path) -> Iterator[Demo]:
    """Stop all processes and delete the data at the end."""
    folder = Path(tempfile.mkdtemp(prefix="moldau-demo-"))
    children = Children(folder)
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        yield Demo(events, rows_per_batch, folder, report, children)
    finally:
        with unbroken():
            children.end_all()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def unbroken() -> Iterator[None]:
    """Ignore a second Ctrl-C, so that the cleanup is complete."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description="The activity pipeline, killed on purpose.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rows-per-batch", type=int, default=200_000)
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "demo" / "report.html")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with temporary_demo(arguments.events, arguments.rows_per_batch, arguments.report.absolute()) as demo:
            is_right = demo.run()
            demo.say("all counts are correct" if is_right else "THE COUNTS ARE WRONG")
    except KeyboardInterrupt:
        print("stopped; everything that was started has ended", file=sys.stderr)
        return 130
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
