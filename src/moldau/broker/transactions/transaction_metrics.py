"""Transaction metrics: open transactions, the age of the oldest, and the lag of last stable offsets."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moldau.broker.partitions.table import Partitions
from moldau.broker.transactions.shard import TransactionShard
from moldau.model.errors import KafkaError


class Open(NamedTuple):
    """The incomplete transactions that this broker coordinates."""

    transactions: int
    oldest_ms: int


class StableLag(NamedTuple):
    """The records of a partition between its last stable offset and its high watermark."""

    topic: str
    partition: int
    records: int


async def open_transactions(shards: Iterable[TransactionShard]) -> Open:
    """Count open transactions; shards that are loading are omitted."""
    found = Open(0, 0)
    for shard in shards:
        try:
            more = await _open_in(shard)
        except KafkaError:
            continue
        found = Open(found.transactions + more.transactions, max(found.oldest_ms, more.oldest_ms))
        await asyncio.sleep(0)
    return found


async def _open_in(shard: TransactionShard) -> Open:
    return await shard.read(lambda machine: Open(machine.open_count, machine.oldest_open_age_ms(shard.now)))


def stable_lags(partitions: Partitions) -> Iterator[StableLag]:
    """Yield the lag of each partition that this broker leads: records that read_committed cannot see yet."""
    for partition in partitions.all():
        if partition.role.is_open and partition.role.is_leader:
            yield StableLag(*partition.name, partition.high_watermark - partition.last_stable_offset)
