"""A machine's log whose records build on earlier ones with the same key: replay yields all of them, in order.

The machine keeps such a log short itself, by deleting the records before its snapshots.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TypeVar

from crc32c import crc32c

from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.model.errors import CorruptMessage
from moldau.records.header import CHECKED_POSITION, read_header
from moldau.records.record import iterate_records

Record = TypeVar("Record")


class UncompactedLog(PartitionLog[Record]):
    """Replays chunk by chunk; the driver yields to requests within and between them."""

    async def replay(self) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        log = self._partition.log
        offset = log.start_offset
        while True:
            with self._giving_up_if_corrupt(offset):
                found = log.read(offset, self._read_bytes)
                if found is None:
                    return
                batches, offset = self._checked(memoryview(await self._executor.run(found.read)), offset)
            yield (each for batch in batches for each in self._records(batch))

    def _checked(self, chunk: memoryview, offset: int) -> tuple[list[memoryview], int]:
        """Split a chunk into batches; also return the offset after them."""
        batches, position = [], 0
        while position < len(chunk):
            header = read_header(chunk[position:])
            batch = chunk[position : position + header.size_bytes]
            if len(batch) < header.size_bytes or crc32c(batch[CHECKED_POSITION:]) != header.crc:
                raise CorruptMessage(f"{self._partition.name}: the batch at offset {header.base_offset} is corrupt")
            batches.append(batch)
            position, offset = position + header.size_bytes, header.last_offset + 1
        return batches, offset

    def _records(self, batch: memoryview) -> Iterator[tuple[int, Record]]:
        for offset, _, key, value, _ in iterate_records(batch):
            record = None if key is None else self._coding.decode(key, value)
            if record is not None:
                yield offset, record
