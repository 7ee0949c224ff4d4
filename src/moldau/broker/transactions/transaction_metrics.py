"""What dashboards want to know of transactions: how many are open, for how long, and who holds up readers."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moldau.broker.partitions.table import Partitions
from moldau.broker.transactions.shard import TransactionShard
from moldau.model.errors import KafkaError


class Open(NamedTuple):
    """The transactions that are coordinated here and have begun but are not complete."""

    transactions: int
    oldest_ms: int


class StableLag(NamedTuple):
    """How many committed records of a partition stand behind the first open transaction."""

    topic: str
    partition: int
    records: int


async def open_transactions(shards: Iterable[TransactionShard]) -> Open:
    """Those of shards that are loading are left out."""
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
    """Of the partitions that are led here: what readers of committed records cannot see yet."""
    for partition in partitions.all():
        if partition.is_open and partition.is_leader:
            yield StableLag(*partition.name, partition.high_watermark - partition.last_stable_offset)
