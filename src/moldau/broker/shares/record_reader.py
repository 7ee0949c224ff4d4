"""Reads records of a partition for share groups, in slices so that other requests are not delayed."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from moldau.broker.partitions.partition import Partition
from moldau.model.ports import Executor, FileSlice
from moldau.model.units import KiB, MiB
from moldau.records.header import BatchHeader
from moldau.records.record import Record, iterate_batches, iterate_records
from moldau.storage.transaction_index import AbortedTransaction

RECORDS_PER_SLICE: Final = 200
READ_BYTES: Final = MiB
_PROBED_BYTES: Final = 64 * KiB


def is_aborted(header: BatchHeader, aborted: Iterable[AbortedTransaction]) -> bool:
    """Whether the batch belongs to one of these transactions."""
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


async def load(records: FileSlice, executor: Executor) -> bytes:
    """Read a slice, in a thread unless it is in the page cache."""
    if records.file.is_cached(min(records.length, _PROBED_BYTES), records.position):
        return records.read()
    return await executor.run(records.read)


async def read_records(
    partition: Partition, first_offset: int, last_offset: int, executor: Executor, *, skips_aborted: bool = False
) -> AsyncIterator[Record]:
    """Yield the replicated records in the range that are still in the log; CorruptMessage if they cannot be parsed.

    `skips_aborted` leaves out the records of aborted transactions; all in the range must have ended then.
    """
    offset = max(first_offset, partition.log.start_offset)
    while offset <= last_offset:
        found = partition.read(offset, READ_BYTES, partition.high_watermark, at_least_one=True)
        if found is None:
            return
        next_offset = offset
        batches = list(iterate_batches(await load(found, executor)))
        end_offset = batches[-1][0].next_offset if batches else offset
        aborted = partition.log.aborted_transactions(offset, end_offset) if skips_aborted else ()
        for header, batch in batches:
            next_offset = header.next_offset
            if header.is_control or header.last_offset < offset or is_aborted(header, aborted):
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
