"""The follower role of a partition: append what the leader sends, truncate what it does not have.

The fetcher (`replicas/fetcher.py`) drives it, one FollowerRole per leader epoch:

    build_fetch_partition() -> fetch -> append_response(): append batches, advance the high watermark
                                     -> diverging epoch: truncate() -> flush the truncation -> next fetch

A response is used only if the log has not changed since its request (`accepts_response`). With `flush.messages=1` the
fetch offset reports only flushed records, because the leader counts it towards the high watermark.
"""

from collections.abc import Callable
from typing import Any, Protocol

from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE, Partition
from moldau.broker.partitions.uncommitted_bytes import UncommittedBytes
from moldau.machines.replication import FollowerMachine, RestartAt, Truncation
from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.records.header import HEADER_BYTES, read_header
from moldau.storage.recovery import ProducerReplay
from moldau.wire.follower_fetch import FetchPartition


def _ignore() -> None:
    """Ignore the notification."""


class FetchedRecords(Protocol):
    """A leader's response for one partition, as either decoder returns it."""

    @property
    def records(self) -> Any:
        """Batches, or None."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...


class FollowerRole:
    """One leader epoch of one partition, as a follower."""

    __slots__ = (
        "_requested_position",
        "_uncommitted",
        "failures",
        "is_held",
        "is_in_session",
        "is_in_sync",
        "key",
        "machine",
        "named_in_fetch",
        "named_start_offset",
        "on_ready",
        "on_synced",
        "partition",
    )

    def __init__(self, partition: Partition, machine: FollowerMachine, *, is_in_sync: bool) -> None:
        self.partition = partition
        self.key = bytes(partition.topic_id), partition.name.partition
        self.machine = machine
        self.is_in_sync = is_in_sync
        self.is_held = False  # while the leader handles another request for it
        self.is_in_session = False
        self.named_in_fetch = 0  # number of the last fetch that named it; its position then is in `_requested_position`
        self.named_start_offset = NO_OFFSET  # the log start offset that the last fetch which named it reported
        self._requested_position = NO_EPOCH, NO_OFFSET, NO_EPOCH  # leader epoch, offset, last epoch
        self.failures = 0
        self.on_ready: Callable[[], None] = _ignore  # called when one reason to wait is gone
        self.on_synced: Callable[[], None] = _ignore  # called when the whole log is flushed
        self._uncommitted = UncommittedBytes()

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows in this epoch."""
        return self.partition.role.following is self

    @property
    def can_be_fetched(self) -> bool:
        return self.is_current and not self.is_held and not self.partition.has_unflushed_truncation

    @property
    def waits_for_sync(self) -> bool:
        """Whether the fetch has to wait for a flush, because the topic requires flushed records."""
        log = self.partition.log
        return log.settings.flush_messages == FLUSH_EVERY_MESSAGE and log.recovery_point < log.end_offset

    def build_fetch_partition(self, number: int, max_bytes: int) -> FetchPartition:
        """The partition's entry in a fetch request."""
        machine = self.machine
        self.named_in_fetch = number
        self._requested_position = machine.leader_epoch, machine.fetch_offset, machine.last_fetched_epoch
        start_offset = self.named_start_offset = self.partition.log.start_offset
        return FetchPartition(*self.key, *self._requested_position, start_offset, max_bytes)

    def accepts_response(self, number: int) -> bool:
        """Whether a response to fetch `number` still fits the log, and no truncation is pending."""
        is_waiting = self.is_current and not self.is_held
        return is_waiting and self.named_in_fetch <= number and self.machine.expects(*self._requested_position)

    def append_response(self, response: FetchedRecords, now_ms: int) -> int:
        """Append the fetched records and the leader's offsets; return by how many bytes the log grew."""
        partition, machine = self.partition, self.machine
        count = len(response.records or b"")
        if count:
            if partition.log.start_offset == partition.log.end_offset:
                self._start_log_with(response.records)
            partition.append_as_follower(response.records, now_ms)
            self._uncommitted.grew(partition.log.end_offset, count)
        machine.fetched(response.high_watermark, response.log_start_offset)
        if machine.high_watermark > partition.high_watermark:
            partition.committed_to(machine.high_watermark, self._uncommitted.take(machine.high_watermark))
        partition.advance_start_offset(machine.log_start_offset)
        return count

    def _start_log_with(self, records: memoryview) -> None:
        """The leader's log may start within a batch (after DeleteRecords). An empty follower log takes that whole
        batch, but starts at the leader's log start offset."""
        log = self.partition.log
        if len(records) >= HEADER_BYTES:
            first = read_header(records)
            if first.base_offset < log.end_offset <= first.last_offset:
                log.truncate_fully_and_start_at(first.base_offset)
                self.partition.waiters.offsets_changed()

    def replay_for(self, truncate: Truncation) -> ProducerReplay | None:
        """Prepare a truncation: the producer state to rebuild, if any, so that the truncation itself is quick."""
        log = self.partition.log
        if isinstance(truncate, RestartAt) or not log.segment_base_offsets[0] < truncate.end_offset < log.end_offset:
            return None
        return log.replay_producers_below(truncate.end_offset)

    def truncate(self, truncate: Truncation, replay: ProducerReplay | None = None) -> None:
        """Truncate records that the leader does not have. Flush this before the next fetch."""
        log = self.partition.log
        if isinstance(truncate, RestartAt):
            log.truncate_fully_and_start_at(truncate.start_offset)
        else:
            log.truncate_to(truncate.end_offset, replay)
        self._uncommitted.truncate(log.end_offset)
        self.partition.high_watermark = self.machine.high_watermark
        self.partition.waiters.offsets_changed()

    def synced(self) -> None:
        """More of the log is flushed."""
        if not self.waits_for_sync:
            self.on_synced()
