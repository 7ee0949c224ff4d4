"""Records of a queue, or of its dead-letter topic, read without a group."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moldau.client.types import EARLIEST, LATEST
from moldau.client.visibility import visible_batches
from moldau.model.ids import TopicPartition
from moldau.records.record import Record, iterate_records

if TYPE_CHECKING:
    from moldau.client.blocking_client import BlockingClient


def extents(client: "BlockingClient", topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """The start and end offset of each partition."""
    places = [TopicPartition(topic, each.index) for each in client.describe_topic(topic).partitions]
    starts = client.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(places, LATEST))
    return {place: (starts[place].offset, ends[place].offset) for place in places}


def records_between(client: "BlockingClient", place: TopicPartition, start: int, end: int) -> Iterator[Record]:
    """The visible records of a partition from one offset up to another."""
    from moldau.client.types import Isolation

    offset = start
    while offset < end:
        fetched = client.fetch(*place, offset, isolation=Isolation.READ_UNCOMMITTED)
        before = offset
        for header, batch, is_visible in visible_batches(fetched.records, fetched.aborted, Isolation.READ_UNCOMMITTED):
            if is_visible:
                yield from (each for each in iterate_records(batch) if offset <= each.offset < end)
            offset = max(offset, header.last_offset + 1)
        if offset == before:
            return
