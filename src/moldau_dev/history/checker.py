"""Run all checks on a history: `python -m moldau_dev.history.checker FILE [--complete]`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from moldau_dev.history.anomalies import Report
from moldau_dev.history.attempts import Attempt, load
from moldau_dev.history.contents import Contents
from moldau_dev.history.losses import aborted_reads, lost_writes, unseen
from moldau_dev.history.offsets import acknowledged_below, duplicates, inconsistent_offsets
from moldau_dev.history.operations import Kind
from moldau_dev.history.orders import non_monotonic_sends, poll_order
from moldau_dev.history.transactions import circular_flows, exactly_once, torn_transactions


def check(attempts: Sequence[Attempt], *, is_complete: bool = False, counts_writes: bool = False) -> Report:
    """Check a history and return the report.

    `is_complete`: the history ends after all records were read, so unread ones are missing. `counts_writes`: the order
    of writes is part of the search for cycles.
    """
    contents = Contents(attempts)
    writes = [attempt for attempt in attempts if attempt.sends]
    report = Report(
        acknowledged=sum(len(attempt.sends) for attempt in writes if attempt.is_ok),
        failed=sum(len(attempt.sends) for attempt in writes if attempt.kind is Kind.FAIL),
        unknown=sum(len(attempt.sends) for attempt in writes if attempt.kind is Kind.INFO),
        read=contents.records_read,
    )
    for check_one in (
        inconsistent_offsets,
        duplicates,
        lost_writes,
        aborted_reads,
        poll_order,
        non_monotonic_sends,
        acknowledged_below,
    ):
        report.anomalies.extend(check_one(contents))
    if is_complete:
        report.anomalies.extend(unseen(contents))
    report.anomalies.extend(torn_transactions(contents, is_complete=is_complete))
    report.anomalies.extend(circular_flows(contents, counts_writes=counts_writes))
    report.anomalies.extend(exactly_once(contents, is_complete=is_complete))
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moldau_dev.history.checker", description=__doc__)
    parser.add_argument("history", type=Path)
    parser.add_argument("--complete", action="store_true", help="require that all acknowledged records were read")
    options = parser.parse_args(arguments)
    report = check(load(options.history), is_complete=options.complete)
    sys.stdout.write(report.text() + "\n")
    return 0 if report.is_valid and report.proves_something else 1


if __name__ == "__main__":
    sys.exit(main())
