"""Putting and taking jobs with the Python API, for `moldau queue`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from moldau.cli.errors import CommandError
from moldau.cli.group_consumer import check_topic, exit_on_sigterm, librdkafka_settings
from moldau.cli.output import note
from moldau.cli.standard_streams import write_out

if TYPE_CHECKING:
    from moldau.api import Connection, Job

PROMPT: Final = "[a]ck, [r]etry, re[j]ect, [q]uit? "


class JobRejected(Exception):
    """A command exited with a code that rejects its job."""


class CommandFailed(Exception):
    """A command exited with another code than 0."""


@contextmanager
def _connected(bootstrap_servers: str, topic: str) -> "Iterator[Connection]":
    try:
        from moldau.api import Failed, connect
    except ModuleNotFoundError as missing:
        raise CommandError("queues need confluent-kafka: pip install confluent-kafka") from missing
    settings = librdkafka_settings()
    check_topic(topic, bootstrap_servers)
    try:
        with connect(bootstrap_servers, **settings, log_level=3) as connection:
            yield connection
    except Failed as error:
        raise CommandError(str(error)) from error


def put_jobs(
    bootstrap_servers: str,
    topic: str,
    group: str,
    values: list[str] | None,
    key: str | None,
    headers: dict[str, str],
    delay_s: float | None,
    at: datetime | None,
) -> None:
    """Put the values, or the lines of standard input."""
    if not values and sys.stdin.isatty():
        note("type one job per line, Ctrl-D to finish")
    with _connected(bootstrap_servers, topic) as connection, connection.queue(topic, group=group) as queue:
        number = 0
        for value in values or (line.rstrip("\n") for line in sys.stdin):
            queue.put(value, key=key, headers=headers, delay=delay_s, at=at)
            number += 1
        connection.flush()
    note(f"put {number} jobs into {topic}")


# -- one by one


def take_jobs(
    bootstrap_servers: str,
    topic: str,
    group: str,
    count: int | None,
    template: str,
    idle_s: float | None,
    *,
    acks: bool,
) -> None:
    """Print each job, and ask for its verdict."""
    from moldau.cli.record_format import compile_template
    from moldau.records.record import Record

    formatter = compile_template(template)
    with (
        exit_on_sigterm(),
        _connected(bootstrap_servers, topic) as connection,
        connection.queue(topic, group=group, idle_s=idle_s) as queue,
    ):
        for number, job in enumerate(queue, 1):
            message = job.message
            record = Record(message.offset, message.timestamp_ms, message.key, message.value, message.headers)
            write_out(formatter(message.topic, message.partition, record))
            sys.stdout.flush()
            if acks:
                job.ack(waits=True)
            elif not _ask(job):
                return
            if number == count:
                return


def _ask(job: "Job") -> bool:
    """Ask for the verdict of a job; return False to quit, which releases it."""
    verdicts: dict[str, Callable[[], None]] = {
        "a": lambda: job.ack(waits=True),
        "r": job.retry,
        "j": job.reject,
    }
    while True:
        print(f"{job.place} attempt {job.attempt}: {PROMPT}", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        choice = line.strip().lower()[:1]
        if not line or choice == "q":
            note("" if line else "end of input; the job is released")
            return False
        if choice in verdicts:
            verdicts[choice]()
            return True
        note(f"{line.strip()!r} is none of a, r, j, q")


# -- a command for each


def run_commands(
    bootstrap_servers: str,
    topic: str,
    group: str,
    command: str,
    rejections: frozenset[int],
    concurrency: int,
    count: int | None,
    idle_s: float | None,
    grace_s: float,
) -> None:
    """Run a worker whose function is the command."""
    left = count
    with _connected(bootstrap_servers, topic) as connection, connection.queue(topic, group=group) as queue:

        @queue.worker(concurrency=concurrency, reject_on=JobRejected)
        def work(job: "Job") -> None:
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:  # taken at the same time as the last one
                    job.retry()
                    return
                if left == 0:
                    queue.stop()
            _run_command(job, command, rejections)

        progress = queue.run(grace_s=grace_s, idle_s=idle_s)
    note(
        f"{progress.done} done, {progress.retried} retried, {progress.rejected} rejected, "
        f"{progress.released} released in {progress.elapsed_s:.1f} s"
    )


def _run_command(job: "Job", command: str, rejections: frozenset[int]) -> None:
    environment = {
        **os.environb,
        b"MOLDAU_TOPIC": job.place.topic.encode(),
        b"MOLDAU_PARTITION": b"%d" % job.place.partition,
        b"MOLDAU_OFFSET": b"%d" % job.place.offset,
        b"MOLDAU_ATTEMPT": b"%d" % job.attempt,
    }
    if job.key is not None and b"\0" not in job.key:
        environment[b"MOLDAU_KEY"] = job.key
    # A session of its own: Ctrl-C reaches this program alone, so that the commands in hand can finish.
    code = subprocess.run(
        ["/bin/sh", "-c", command], input=job.value or b"", env=environment, start_new_session=True, check=False
    ).returncode
    if code in rejections:
        raise JobRejected(f"exit code {code}")
    if code != 0:
        raise CommandFailed(f"exit code {code}")
