"""Reads of share fetches: which batches of a slice of the log can be delivered, and where they are."""

from typing import NamedTuple

from moldau.broker.partitions.partition import Partition
from moldau.broker.shares.record_reader import is_aborted
from moldau.machines.shares.acknowledgement import OffsetRange
from moldau.machines.shares.acquisition import AcquiredRange, LogRead
from moldau.model.ports import FileSlice
from moldau.storage.batch_scan import iterate_headers


class BatchPosition(NamedTuple):
    """Where a batch is in its file."""

    last_offset: int
    position: int
    end: int
    timestamp: int


class ShareRead(NamedTuple):
    """A slice of the log, scanned."""

    log: LogRead
    positions: list[BatchPosition]


def scan(
    partition: Partition, records: FileSlice, offset: int, offsets_max: int, *, is_read_committed: bool
) -> ShareRead:
    """Scan the headers of the batches from the one with `offset` on, until they have `offsets_max` offsets or more.

    Control batches and, if the group reads committed records only, batches of aborted transactions are left out. The
    records must all be below the last stable offset then.
    """
    headers = []
    for position, header in iterate_headers(records.file, records.position, records.position + records.length):
        headers.append((position, header))
        if header.next_offset - offset >= offsets_max:
            break
    end_offset = headers[-1][1].next_offset if headers else offset
    aborted = partition.log.aborted_transactions(offset, end_offset) if is_read_committed else []
    batches, positions = [], []
    for position, header in headers:
        end = position + header.size_bytes
        positions.append(BatchPosition(header.last_offset, position, end, header.max_timestamp))
        if not header.is_control and not is_aborted(header, aborted):
            batches.append(OffsetRange(header.base_offset, header.last_offset))
    return ShareRead(LogRead(offset, end_offset, batches), positions)


def trim(records: FileSlice, read: ShareRead, acquired: list[AcquiredRange]) -> FileSlice:
    """Cut off the batches before and after the acquired records."""
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
    start = next(each.position for each in read.positions if each.last_offset >= first_offset)
    end = next(each.end for each in read.positions if each.last_offset >= last_offset)
    return FileSlice(records.file, start, end - start)
