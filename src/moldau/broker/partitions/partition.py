"""One partition replica on this broker: its log, its high watermark, and what depends on them.

    role         PartitionRole: alone, leader or follower; changed by `lead_alone`, `lead`, `follow` and `close`
    waiters      PartitionWaiters: delayed produces and fetches
    corruption   PartitionCorruption: the ranges of the log that are not served

The write path: append() -> log buffer -> write (coalesced per turn) -> flush if the topic requires it -> high watermark
advances -> `committed_to` completes commit waiters and wakes delayed fetches.

What advances the high watermark depends on the role:

    alone      the append, or the flush if the topic requires flushed records (`flush.messages=1`)
    leader     the replication machine of `role.leading`: appends, flushes and fetches of followers
    follower   the leader's fetch responses, through `role.following`

Consumers read below the high watermark. While a turn of the event loop coalesces writes, the log end offset is ahead of
the file; nothing else runs within a turn, so no reader sees it. If that write fails, `take_coalesced_failure` reverts.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from moldau.broker.partitions.corruption import PartitionCorruption
from moldau.broker.partitions.partition_role import PartitionRole
from moldau.broker.partitions.remote_follower import RemoteFollower
from moldau.broker.partitions.waiters import PartitionWaiters
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.runtime.meters import TrafficMeter
from moldau.model.errors import OutOfOrderSequence, StorageFailed
from moldau.model.ids import TopicId, TopicPartition
from moldau.model.ports import FileSlice
from moldau.records.header import (
    ATTRIBUTES_FIELD,
    BASE_SEQUENCE_FIELD,
    CONTROL,
    PRODUCER_ID_FIELD,
    TRANSACTIONAL,
    BatchHeader,
)
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.corrupt_range import unreadable_from
from moldau.storage.log import AppendResult, Log

if TYPE_CHECKING:
    from moldau.broker.partitions.follower_role import FollowerRole
    from moldau.broker.partitions.leader_role import LeaderRole

FLUSH_EVERY_MESSAGE: Final = 1
FLUSH_NEVER: Final = 2**63 - 1


class Partition:
    """A replica of a partition: a log and its high watermark."""

    __slots__ = (
        "_coalescer",
        "_is_careful",
        "_on_disk_error",
        "_request_sync",
        "corruption",
        "followers",
        "has_unflushed_truncation",
        "high_watermark",
        "log",
        "name",
        "pending_bytes",
        "role",
        "topic_id",
        "traffic",
        "waiters",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        log: Log,
        leader_epoch: int,
        traffic: TrafficMeter,
        request_sync: Callable[["Partition"], None],
        on_disk_error: Callable[["Partition", OSError], None],
        coalescer: WriteCoalescer | None = None,
        high_watermark: int | None = None,
    ) -> None:
        """`high_watermark` is the checkpointed one; without other replicas the whole log is committed."""
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.traffic = traffic
        self.high_watermark = self.durable_offset if high_watermark is None else min(high_watermark, log.end_offset)
        self.role = PartitionRole(name, leader_epoch)
        self.waiters = PartitionWaiters(self)
        self.corruption = PartitionCorruption(name, self.role)
        # the partition's entries in the fetch sessions of other brokers
        self.followers: dict[RemoteFollower, None] = {}
        self.pending_bytes = 0  # appended, but above the high watermark
        self.has_unflushed_truncation = False  # truncated, and the truncation is not flushed yet
        self._request_sync = request_sync
        self._on_disk_error = on_disk_error
        self._coalescer = WriteCoalescer() if coalescer is None else coalescer
        self._is_careful = False  # the last coalesced write failed: write the next one by itself

    # -- writing

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> AppendResult:
        """Append one validated batch as leader; it is written when this returns, or when the turn ends."""
        log, role = self.log, self.role
        leading = role.leading
        if leading is not None and header[BASE_SEQUENCE_FIELD] > 0:
            leading.check_first_sequence(header[PRODUCER_ID_FIELD])
        coalescer = self._coalescer
        is_buffered = coalescer.is_open and not self._is_careful
        if not is_buffered and not coalescer.is_empty:
            coalescer.write()  # sends to followers read this batch at once, and other buffered logs too
        try:
            if header[ATTRIBUTES_FIELD] & TRANSACTIONAL and not header[ATTRIBUTES_FIELD] & CONTROL:
                log.producers.check_verified(header)
            appended = log.append(batch, header, role.leader_epoch, now_ms, is_buffered=is_buffered)
        except OutOfOrderSequence as gap:
            raise gap if leading is None else leading.sequence_error(gap) from None
        except OSError as error:
            self._on_disk_error(self, error)
            failed = StorageFailed(f"Cannot write {self.name}: {error.strerror}.")
            raise failed if leading is None else leading.record_rejection(failed) from error
        if appended.is_duplicate:
            return appended
        if not is_buffered:
            self._is_careful = False
        elif coalescer.newest is not self:
            coalescer.add(self)
        size = len(batch)
        traffic = self.traffic
        traffic.messages_in += header.records_count
        traffic.bytes_in += size
        flush_messages = log.settings.flush_messages
        if leading is not None:
            leading.appended(size, is_written=not is_buffered)
        elif flush_messages == FLUSH_EVERY_MESSAGE:
            self.pending_bytes += size
        elif self.waiters.watchers or self.waiters.commits.waits:
            self.committed_to(log.end_offset, size)
        else:
            self.high_watermark = log.end_offset
        if flush_messages != FLUSH_NEVER:
            self._flush_if_due(flush_messages)
        return appended

    def forget_ends(self) -> None:
        """Drop the record of committed transaction ends, which must stay small."""
        self.log.last_stable_offset(self.high_watermark)

    def append_as_follower(self, batches: memoryview, now_ms: int) -> None:
        """Append batches from the leader unchanged."""
        log = self.log
        self.forget_ends()
        try:
            log.append_as_follower(batches, now_ms, self.role.leader_epoch)
        except OSError as error:
            self._on_disk_error(self, error)
            raise StorageFailed(f"Cannot write {self.name}: {error.strerror}.") from error
        self.traffic.replication_bytes_in += len(batches)
        self._flush_if_due(log.settings.flush_messages)

    @property
    def durable_offset(self) -> int:
        """Up to where this replica counts for the high watermark: the log end or, if required, the flushed offset."""
        log = self.log
        return log.recovery_point if log.settings.flush_messages == FLUSH_EVERY_MESSAGE else log.end_offset

    def bring_to_disk(self) -> None:
        """If the topic requires flushed records: flush what an earlier run may have left unflushed."""
        if self.log.settings.flush_messages == FLUSH_EVERY_MESSAGE and self.log.recovery_point < self.log.end_offset:
            self._request_sync(self)

    def _flush_if_due(self, flush_messages: int) -> None:
        if flush_messages == FLUSH_EVERY_MESSAGE or self.log.unflushed_messages >= flush_messages:
            self._request_sync(self)

    def write_buffered(self) -> None:
        """Write what this turn has appended. `take_coalesced_failure` returns the error if that failed."""
        try:
            self.log.write_buffered()
        except OSError as error:
            self._on_disk_error(self, error)

    def take_coalesced_failure(self) -> OSError | None:
        """The error of this turn's coalesced write, if any: its batches are gone, and no reader has seen them."""
        append_buffer = self.log.append_buffer
        failure, append_buffer.failure = append_buffer.failure, None
        if failure is not None:
            self._is_careful = True
            self.pending_bytes = 0
            self.high_watermark = min(self.high_watermark, self.log.end_offset)
        if self.role.leading is not None:
            self.role.leading.turn_ended(has_failed=failure is not None)
        return failure

    def committed_to(self, offset: int, count: int) -> None:
        """Advance the high watermark to `offset`, by `count` bytes."""
        self.high_watermark = offset
        self.waiters.committed(offset, count)

    def synced_to(self, offset: int, count: int) -> None:
        """Everything below `offset` is flushed, `count` bytes more than before."""
        role = self.role
        if role.leading is not None:
            self.waiters.synced(offset)
            role.leading.synced()
        elif role.following is not None:
            role.following.synced()
        elif role.leads_alone and offset > self.high_watermark:  # not during shutdown: other replicas may lack it
            self.pending_bytes = max(0, self.pending_bytes - count)
            self.committed_to(offset, count)

    # -- reading

    def delete_before(self, offset: int) -> None:
        """Hide the records below an offset, up to the high watermark, here and on all followers."""
        self.advance_start_offset(offset)
        leading = self.role.leading
        if leading is not None and leading.machine.low_watermark < offset:
            # Retention may have moved this log start before: idle followers have not been sent it then.
            for follower in list(self.followers):
                follower.on_committed()  # its next fetch response carries the log start offset

    def advance_start_offset(self, offset: int) -> None:
        """Hide the records below an offset on this replica."""
        if offset > self.log.start_offset:
            self.log.advance_start_offset(offset)
            self.waiters.offsets_changed()

    @property
    def last_stable_offset(self) -> int:
        """Below it, every transaction has ended with a committed marker."""
        return self.log.last_stable_offset(self.high_watermark)

    def read(self, offset: int, max_bytes: int, until_offset: int, *, at_least_one: bool) -> FileSlice | None:
        corruption = self.corruption
        if corruption.first is not None:
            until_offset = corruption.readable_until(offset, until_offset)
        try:
            return self.log.read(offset, max_bytes, until_offset=until_offset, at_least_one=at_least_one)
        except CorruptBatch as error:
            raise corruption.record_unreadable(unreadable_from(offset, error)) from error
        except OSError as error:
            self._on_disk_error(self, error)
            raise StorageFailed(f"Cannot read {self.name}: {error.strerror}.") from error

    # -- roles

    def lead_alone(self, leader_epoch: int) -> None:
        """There is no other replica: everything in the log (or flushed, where required) is committed."""
        self.role.lead_alone(leader_epoch)
        self._leader_changed()
        offset = self.durable_offset
        if offset > self.high_watermark:
            self.committed_to(offset, 0)

    def lead(self, leader_epoch: int, leading: "LeaderRole") -> None:
        """Lead with followers; commit waiters of our previous epoch keep waiting."""
        self.role.lead(leader_epoch, leading)
        self._leader_changed()
        if self.log.recovery_point < self.log.end_offset:
            self._flush_if_due(self.log.settings.flush_messages)

    def follow(self, leader_epoch: int, following: "FollowerRole") -> None:
        """Another broker leads, or none: commit waiters and delayed fetches fail."""
        self.role.follow(leader_epoch, following)
        self._leader_changed()
        self.waiters.fail(self.role.not_leader_error())

    def close(self) -> None:
        """The partition is deleted or the broker stops: fail all waiters."""
        self.role.close()
        self._leader_changed()
        self.waiters.fail(self.role.no_replica_error())

    def _leader_changed(self) -> None:
        for follower in list(self.followers):
            follower.on_leader_changed()
        self.waiters.offsets_changed()  # sessions check the leader epoch of their clients
