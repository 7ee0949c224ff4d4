"""Checks for acknowledged records that were not read, and for reads of aborted ones."""

from collections.abc import Iterator

from moldau_dev.history.anomalies import Anomaly, Name
from moldau_dev.history.contents import Contents, Readers
from moldau_dev.history.operations import Kind


def lost_writes(contents: Contents) -> Iterator[Anomaly]:
    """Find records acknowledged at or below the highest offset read, but not read.

    A group must have read only what lies between the first and the last record that it read of a key.
    """
    for readers in contents.readers():
        for _, send in contents.acknowledged():
            is_passed = send.offset is not None and send.offset <= readers.highest.get(send.key, -1)
            if (
                is_passed
                and _is_expected(readers, send.key, send.offset)
                and not readers.has_seen(send.key, send.value)
            ):
                seen = f"{send.value!r} at {send.offset} was not read by {readers.name}, although later records were"
                yield Anomaly(Name.LOST_WRITE, send.key, seen)


def unseen(contents: Contents) -> Iterator[Anomaly]:
    """Find acknowledged records that were never read, in complete histories."""
    for readers in contents.readers():
        for _, send in contents.acknowledged():
            is_passed = send.offset is not None and send.offset <= readers.highest.get(send.key, -1)
            if not is_passed and readers.should_read(send.key) and not readers.has_seen(send.key, send.value):
                yield Anomaly(Name.UNSEEN, send.key, f"{send.value!r} at {send.offset} by {readers.name}")


def aborted_reads(contents: Contents) -> Iterator[Anomaly]:
    """Find reads of records whose write failed or whose transaction was aborted."""
    for reader, key, (offset, value) in contents.ok_reads():
        writer = contents.writers.get((key, value))
        if writer is None:
            yield Anomaly(Name.READ_FROM_NOWHERE, key, f"{value!r} at {offset}, which was never sent")
        elif writer.kind is Kind.FAIL:
            seen = f"{value!r} at {offset}, read by {reader.process}, belongs to a failed {writer.f}"
            yield Anomaly(Name.ABORTED_READ, key, seen)


def _is_expected(readers: Readers, key: str, offset: int | None) -> bool:
    return not readers.topics or (offset is not None and offset >= readers.lowest.get(key, 0))
