"""Validation of records in large batches: decompression in threads, records in time slices, one batch at a time."""

import asyncio
from functools import partial
from typing import Final

from moldau.broker.partitions.produce_validation import (
    ValidatedBatch,
    in_topic_codec,
    is_in_other_codec,
    record_rules,
    with_max_timestamp,
)
from moldau.broker.runtime.record_sampler import RecordSampler
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import CorruptMessage, InvalidRecord, KafkaError, MessageTooLarge, RequestTimedOut
from moldau.model.ports import Executor
from moldau.model.units import MiB
from moldau.records.compression import OUTPUT_BYTES_MAX, Compression
from moldau.records.conversion import recompress
from moldau.records.header import read_header
from moldau.records.record import iterate_records
from moldau.records.validation import RecordCheck, RecordRules
from moldau.storage.settings import LogSettings

HELD_BYTES_MAX: Final = 64 * MiB  # of batches that wait for validation
INFLATED_BYTES_MAX: Final = 32 * MiB  # limit of a decompressed batch
RECORDS_MAX: Final = 1_000_000  # compaction keeps them all in memory
INFLATION_MAX: Final = 4  # or this many times max.message.bytes, if that is more


class RecordValidator:
    """Bounded in memory, because a few bytes may decompress to many; its work never blocks other requests."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._one_at_a_time = asyncio.Lock()
        self._held_bytes = 0

    def copy(self, records: memoryview) -> bytearray:
        """Copy a borrowed buffer. Raises RequestTimedOut, which producers retry, when too much waits already."""
        if self._held_bytes and self._held_bytes + len(records) > HELD_BYTES_MAX:
            raise RequestTimedOut("Too many large batches wait for validation; retry.")
        self._held_bytes += len(records)
        return bytearray(records)

    def release(self, records: bytearray) -> None:
        self._held_bytes -= len(records)

    async def accept(
        self, records: bytearray, settings: LogSettings, now_ms: int, turn: TimeSlice, sampler: RecordSampler
    ) -> ValidatedBatch:
        """As `produce_validation.accept`, for batches it has deferred."""
        producer_id = read_header(records).producer_id
        try:
            async with self._one_at_a_time:
                accepted = await self._accept(records, settings, now_ms, turn)
        except KafkaError:
            sampler.rejected(producer_id)
            raise
        sampler.accepted(producer_id)
        return accepted

    async def _accept(self, records: bytearray, settings: LogSettings, now_ms: int, turn: TimeSlice) -> ValidatedBatch:
        inflated_bytes_max = min(OUTPUT_BYTES_MAX, max(INFLATED_BYTES_MAX, INFLATION_MAX * settings.max_message_bytes))
        inflate = partial(recompress, records, Compression.NONE, output_bytes_max=inflated_bytes_max)
        plain = await self._executor.run(inflate)
        max_timestamp = await self._check_records(plain, record_rules(settings, now_ms), turn)
        batch, header = memoryview(records), read_header(records)
        if is_in_other_codec(header, settings):
            batch = await self._executor.run(in_topic_codec, plain, settings, inflated_bytes_max)
            header = read_header(batch)
        return batch, with_max_timestamp(batch, header, settings, max_timestamp)

    async def _check_records(self, plain: bytearray, rules: RecordRules, turn: TimeSlice) -> int:
        """Check all records, in time slices; return the max timestamp."""
        header = read_header(plain)
        if header.records_count > RECORDS_MAX:
            raise MessageTooLarge(
                f"The batch has {header.records_count} records, more than the limit of {RECORDS_MAX}."
            )
        check = RecordCheck(rules)
        try:
            for record in iterate_records(plain):
                check.add(record)
                if turn.is_over():
                    await turn.next()
        except CorruptMessage as error:
            raise InvalidRecord(error.message) from None
        check.finish()
        return check.max_timestamp
