"""`moldau pipeline run archive` as a user runs it: a topic into Parquet files, batch after batch."""

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
_DONE_S_MAX: Final = 600
_ERROR_CHARACTERS: Final = 2_000


def archive_rounds(bench: Bench, topic: Topic, records: Records, batches: int, *, warm_up: int = 1) -> list[Round]:
    """Return a round per batch of one run, without the warm-up batches."""
    command = _command(bench, topic, records.count // batches)
    bench.tell(f"{ARCHIVE}: {batches} batches")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DONE_S_MAX, check=False)
    if done.returncode:
        raise CommandError(f"the archive ended with code {done.returncode}:\n{done.stderr[-_ERROR_CHARACTERS:]}")
    rounds = rounds_of(done.stdout, records.record_bytes)
    found = sum(each.records for each in rounds)
    if found != records.count:
        raise CommandError(f"the archive tells of {found} records, the topic has {records.count}")
    return rounds[warm_up:]


def rounds_of(lines: str, record_bytes: int) -> list[Round]:
    """Parse the output of --json: a line per batch, and lines while the query was idle."""
    batches_read = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return [
        Round(1, each["batch_ms"] / 1000, each["rows"] * record_bytes, each["rows"])
        for each in batches_read
        if each["rows"]
    ]


def _command(bench: Bench, topic: Topic, rows_per_batch: int) -> list[str]:
    folder: Path = bench.folder
    return [
        *(sys.executable, "-m", "moldau.cli.main", "pipeline", "run", "archive", "--once", "--json"),
        *("--bootstrap-servers", bench.cluster.bootstrap_servers, "--topic", topic.name),
        *("--to", str(folder / "archive"), "--folder", str(folder / "pipelines"), "--master", "local[2]"),
        *("--rows-per-batch", str(rows_per_batch)),
    ]
