"""Reads records of a partition for share groups, in slices so that other requests are not delayed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from moldau.broker.partitions.partition import Partition
from moldau.model.ports import Executor, FileSlice
from moldau.model.units import KiB, MiB
from moldau.records.record import Record, iterate_batches, iterate_records

RECORDS_PER_SLICE: Final = 200
READ_BYTES: Final = MiB
_PROBED_BYTES: Final = 64 * KiB


async def load(records: FileSlice, executor: Executor) -> bytes:
    """Read a slice, in a thread unless it is in the page cache."""
    if records.file.is_cached(min(records.length, _PROBED_BYTES), records.position):
        return records.read()
    return await executor.run(records.read)


async def read_records(
    partition: Partition, first_offset: int, last_offset: int, executor: Executor
) -> AsyncIterator[Record]:
    """Yield the committed records in the range that are still in the log; CorruptMessage if they cannot be parsed."""
    offset = max(first_offset, partition.log.start_offset)
    while offset <= last_offset:
        found = partition.read(offset, READ_BYTES, partition.high_watermark, at_least_one=True)
        if found is None:
            return
        next_offset = offset
        for header, batch in iterate_batches(await load(found, executor)):
            next_offset = header.next_offset
            if header.is_control or header.last_offset < offset:
                continue
            for count, record in enumerate(iterate_records(batch)):
                if count % RECORDS_PER_SLICE == RECORDS_PER_SLICE - 1:
                    await asyncio.sleep(0)
                if first_offset <= record.offset <= last_offset:
                    yield record
            if next_offset > last_offset:
                return
        if next_offset == offset:
            return
        offset = next_offset
