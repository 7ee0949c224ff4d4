"""Reads of batches that are not in the page cache, or came there unverified.

A send must not block on the disk: such batches are read in the executor first. As they may have changed on the disk
since they were written, they are verified before they are sent, in steps of a millisecond.
"""

import asyncio
from typing import Final

from moldau.broker.partitions.log_scrubber import LogScrubber
from moldau.broker.partitions.partition import Partition
from moldau.model.ports import Executor, FileSlice
from moldau.model.units import KiB
from moldau.records.header import HEADER_BYTES
from moldau.storage.segments import SegmentSlice

PROBED_AT_ONE_PLACE_BYTES: Final = 64 * KiB  # the kernel reads ahead: a short slice is cached as a whole or not
BATCHES_PER_STEP: Final = 500


def is_cached(records: FileSlice) -> bool:
    """Whether the slice is in the page cache; a send must not block on the disk."""
    probed_bytes = 1 if records.length < PROBED_AT_ONE_PLACE_BYTES else records.length
    return records.file.is_cached(probed_bytes, records.position)


def is_ready(records: FileSlice) -> bool:
    """Whether the batches can be sent: they are in the page cache, and known to be valid."""
    if not is_cached(records):
        if isinstance(records, SegmentSlice):
            records.segment.verification.evicted(records.segment.size_bytes)
        return False
    return not isinstance(records, SegmentSlice) or records.is_verified


async def prepare(records: FileSlice, partition: Partition, executor: Executor, scrubber: LogScrubber) -> bool:
    """Read and verify batches; return whether they can be sent. If not, the corrupt range is marked: read again."""
    if not isinstance(records, SegmentSlice):
        await executor.run(records.read)
        return True
    try:
        if await _is_valid(records, partition, executor):
            records.segment.verification.add(records.position, records.end)
            return True
    except OSError:
        pass  # an unreadable sector: the verification of the segment tells where
    known = len(partition.corruption.ranges)
    await scrubber.verify(partition, records.segment)
    if len(partition.corruption.ranges) == known:  # the segment was replaced or truncated, or the error was transient
        records.segment.verification.add(records.position, records.end)
        return True
    return False


async def _is_valid(records: SegmentSlice, partition: Partition, executor: Executor) -> bool:
    verifier = partition.log.slice_verifier(records)
    if verifier is None:
        return True  # no longer part of the log
    begin = verifier.position
    wanted = min(records.end + HEADER_BYTES, verifier.size_bytes) - begin
    data = await executor.run(records.file.pread, wanted, begin)
    if len(data) < wanted:
        verifier.size_bytes = begin + len(data)
    while verifier.position < records.end:
        before = verifier.position
        verifier.verify(data, begin, BATCHES_PER_STEP)
        if verifier.corrupt or verifier.is_searching or verifier.position == before:
            return False
        await asyncio.sleep(0)
    return True
