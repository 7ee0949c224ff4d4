"""Checks of the order in which one client reads and writes."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from moldau_dev.history.anomalies import Anomaly, Name
from moldau_dev.history.attempts import Attempt
from moldau_dev.history.contents import Contents


def poll_order(contents: Contents) -> Iterator[Anomaly]:
    """Find skips and steps back in the records that one client reads of a key while it is assigned."""
    positions: dict[str, dict[str, int]] = {}
    # By completion: an assignment is recorded in the middle of the poll that uses it.
    for attempt in sorted(contents.attempts, key=lambda attempt: attempt.completed):
        position = positions.setdefault(attempt.process, {})
        if attempt.f == "crash":
            position.clear()
        elif attempt.f == "assign":
            for key in [key for key in position if key not in attempt.value]:
                del position[key]
        elif attempt.is_ok:
            yield from _check_reads(contents, attempt, position)


def _check_reads(contents: Contents, attempt: Attempt, position: dict[str, int]) -> Iterator[Anomaly]:
    for key, (offset, _) in attempt.reads():
        last = position.get(key)
        if last is not None and offset <= last:
            yield Anomaly(Name.NON_MONOTONIC_POLL, key, f"{attempt.process} read {offset} after {last}")
        elif last is not None and (missing := _known_between(contents, key, last, offset)):
            seen = f"{attempt.process} read {offset} after {last}, skipping {missing} records"
            yield Anomaly(Name.POLL_SKIP, key, seen)
        position[key] = offset


def _known_between(contents: Contents, key: str, last: int, offset: int) -> int:
    """Count the known records between two offsets; markers leave gaps that are no records."""
    known = contents.known_offsets.get(key, [])
    return bisect_left(known, offset) - bisect_right(known, last)


def non_monotonic_sends(contents: Contents) -> Iterator[Anomaly]:
    """Find records of one client and key that were appended out of order."""
    last: dict[tuple[str, str], int] = {}
    for attempt in contents.attempts:
        if not attempt.is_ok:
            continue
        for send in attempt.sends:
            if send.offset is None:
                continue
            before = last.get((attempt.process, send.key), -1)
            if send.offset <= before:
                seen = f"{attempt.process} sent {send.value!r} to {send.offset} after one to {before}"
                yield Anomaly(Name.NON_MONOTONIC_SEND, send.key, seen)
            last[attempt.process, send.key] = send.offset
