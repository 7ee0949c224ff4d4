"""`moldau pipeline run archive` and `lake` as a user runs them: a topic into files, batch after batch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.rounds import Round
from moldau.cli.errors import CommandError
from moldau_dev.bench.spark.records import Records

ARCHIVE: Final = "archive of 1 KiB records to Parquet"
LAKE: Final = "1 KiB records into a Delta table"
_DONE_S_MAX: Final = 600
_ERROR_CHARACTERS: Final = 2_000


def archive_rounds(
    bench: Bench, topic: Topic, records: Records, batches: int, *, subject: str = ARCHIVE, warm_up: int = 1
) -> list[Round]:
    """Return a round per batch of one run, without the warm-up batches."""
    command = _command(bench, topic, records.count // batches, subject)
    bench.tell(f"{subject}: {batches} batches")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DONE_S_MAX, check=False)
    if done.returncode:
        raise CommandError(f"{subject} ended with code {done.returncode}:\n{done.stderr[-_ERROR_CHARACTERS:]}")
    rounds = rounds_of(done.stdout, records.record_bytes)
    found = sum(each.records for each in rounds)
    if found != records.count:
        raise CommandError(f"{subject} tells of {found} records, the topic has {records.count}")
    return rounds[warm_up:]


def rounds_of(lines: str, record_bytes: int) -> list[Round]:
    """Parse the output of --json: a line per batch, and lines while the query was idle."""
    batches_read = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return [
        Round(1, each["batch_ms"] / 1000, each["rows"] * record_bytes, each["rows"])
        for each in batches_read
        if each["rows"]
    ]


def _command(bench: Bench, topic: Topic, rows_per_batch: int, subject: str) -> list[str]:
    folder: Path = bench.folder
    job = {
        ARCHIVE: ("archive", "--topic", topic.name, "--to", str(folder / "archive")),
        LAKE: ("lake", topic.name, "--to", "delta", "--table", str(folder / "lake")),
    }
    return [
        *(sys.executable, "-m", "moldau.cli.main", "pipeline", "run", *job[subject], "--once", "--json"),
        *("--bootstrap-servers", bench.cluster.bootstrap_servers),
        *("--folder", str(folder / "pipelines"), "--master", "local[2]"),
        *("--rows-per-batch", str(rows_per_batch)),
    ]
