"""One partition replica on this broker: its log, high watermark, role and waiters.

A partition is in one of three roles, changed by `lead_alone`, `lead` and `follow` when the metadata changes:

    alone      one replica; records are committed when appended (or flushed, see below)
    leader     `leading` (LeaderRole): the high watermark comes from its replication machine
    follower   `following` (FollowerRole): the high watermark comes from the leader's fetch responses

The write path: append() -> log buffer -> write (coalesced per turn) -> flush if the topic requires it -> high watermark
advances -> `committed_to` completes commit waiters and wakes delayed fetches.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.partitions.remote_follower import RemoteFollower
from moldau.broker.partitions.waiters import CommitWaiter, FetchWatcher, OffsetWaiters
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.runtime.meters import TrafficMeter
from moldau.model.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    KafkaError,
    NotLeaderOrFollower,
    OutOfOrderSequence,
    StorageFailed,
    UnknownLeaderEpoch,
)
from moldau.model.ids import NO_EPOCH, NO_NODE, TopicId, TopicPartition
from moldau.model.ports import FileSlice
from moldau.records.control import build_transaction_marker
from moldau.records.header import (
    ATTRIBUTES_FIELD,
    BASE_SEQUENCE_FIELD,
    CONTROL,
    PRODUCER_ID_FIELD,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.corrupt_range import CorruptRange, CorruptRanges, find_corruption_at, unreadable_from
from moldau.storage.log import AppendResult, Log
from moldau.storage.segment import Segment

if TYPE_CHECKING:
    from moldau.broker.partitions.follower_role import FollowerRole
    from moldau.broker.partitions.leader_role import LeaderRole

FLUSH_EVERY_MESSAGE: Final = 1
FLUSH_NEVER: Final = 2**63 - 1


class TransactionEnding(NamedTuple):
    """The contents of a transaction marker, and the transaction version of its producer."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


class Partition:
    """A replica of a partition: alone, leader or follower.

    Consumers read below the high watermark. With one replica that is the log end offset or, if the topic requires
    flushed records (`flush.messages=1`), the flushed offset. With several, it comes from `leading` or `following`.
    """

    __slots__ = (
        "_coalescer",
        "_commit_waits",
        "_is_careful",
        "_on_disk_error",
        "_request_sync",
        "_sync_waits",
        "corrupt_ranges",
        "damage",
        "followers",
        "following",
        "has_unflushed_truncation",
        "high_watermark",
        "is_abandoned",
        "is_leader",
        "is_open",
        "leader_epoch",
        "leading",
        "leads_alone",
        "log",
        "name",
        "on_damage",
        "pending_bytes",
        "topic_id",
        "traffic",
        "watchers",
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
        self.leader_epoch = leader_epoch
        self.traffic = traffic
        self.high_watermark = self.durable_offset if high_watermark is None else min(high_watermark, log.end_offset)
        self.is_open = True
        self.is_leader = True
        self.leading: LeaderRole | None = None  # set while this broker leads with followers
        self.following: FollowerRole | None = None
        # the partition's entries in the fetch sessions of other brokers
        self.followers: dict[RemoteFollower, None] = {}
        self.has_unflushed_truncation = False  # truncated, and the truncation is not flushed yet
        self.damage: CorruptRange | None = None  # the first corrupt range; not served
        self.corrupt_ranges = CorruptRanges()
        self.on_damage: Callable[[Partition, CorruptRange], None] | None = None
        self.is_abandoned = False  # another replica has the records: the log is reopened without the corrupt range
        self.leads_alone = True  # no other replica counts for the high watermark
        self.pending_bytes = 0  # appended, but above the high watermark
        self.watchers: dict[FetchWatcher, None] = {}
        self._commit_waits = OffsetWaiters()
        self._sync_waits = OffsetWaiters()  # waits for the flush only (acks=1)
        self._request_sync = request_sync
        self._on_disk_error = on_disk_error
        self._coalescer = WriteCoalescer() if coalescer is None else coalescer
        self._is_careful = False  # the last coalesced write failed: write the next one by itself

    # -- writing

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> AppendResult:
        """Append one validated batch as leader; it is written when this returns, or when the turn ends."""
        log = self.log
        if (
            header[BASE_SEQUENCE_FIELD] > 0
            and self.leading is not None
            and header[PRODUCER_ID_FIELD] not in log.producers.by_id
        ):
            self._check_first_sequence(self.leading)
        coalescer = self._coalescer
        is_buffered = coalescer.is_open and not self._is_careful
        if not is_buffered and not coalescer.is_empty:
            coalescer.write()  # sends to followers read this batch at once, and other buffered logs too
        try:
            if header[ATTRIBUTES_FIELD] & TRANSACTIONAL and not header[ATTRIBUTES_FIELD] & CONTROL:
                log.producers.check_verified(header)
            appended = log.append(batch, header, self.leader_epoch, now_ms, is_buffered=is_buffered)
        except OutOfOrderSequence as gap:
            raise self._gap_error(gap) from None
        except OSError as error:
            self._on_disk_error(self, error)
            failed = StorageFailed(f"Cannot write {self.name}: {error.strerror}.")
            raise failed if self.leading is None else self.leading.record_rejection(failed) from error
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
        if self.leading is not None:
            self.leading.appended(size, is_written=not is_buffered)
        elif flush_messages == FLUSH_EVERY_MESSAGE:
            self.pending_bytes += size
        elif self.watchers or self._commit_waits.waits:
            self.committed_to(log.end_offset, size)
        else:
            self.high_watermark = log.end_offset
        if flush_messages != FLUSH_NEVER:
            self._flush_if_due(flush_messages)
        return appended

    def end_transaction(self, ending: TransactionEnding, now_ms: int) -> int:
        """Append the marker that ends a transaction, unless it is there already; return the offset after it."""
        log = self.log
        producer_id, epoch, coordinator_epoch, is_commit, version = ending
        if log.producers.check_end(producer_id, epoch, coordinator_epoch, version):
            marker = build_transaction_marker(
                is_commit=is_commit,
                producer_id=producer_id,
                producer_epoch=epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=now_ms,
            )
            self.append(memoryview(marker), read_header(marker), now_ms)
        self.forget_ends()
        return log.end_offset

    def forget_ends(self) -> None:
        """Drop the record of committed transaction ends, which must stay small."""
        self.log.last_stable_offset(self.high_watermark)

    def _gap_error(self, gap: OutOfOrderSequence) -> KafkaError:
        """The error for a sequence gap. Producers pipeline batches: if the first was rejected (not the leader, ISR too
        small, disk full), those behind it must be rejected with the same error even if they could be appended by then.
        librdkafka reacts to a gap with a new epoch and would duplicate what it has sent.
        """
        recent_rejection = None if self.leading is None else self.leading.recent_rejection
        return gap if recent_rejection is None else recent_rejection

    def _check_first_sequence(self, leading: "LeaderRole") -> None:
        """The same for a producer that is unknown here and whose first batch does not start at sequence 0: if that
        batch were appended, the one before it would be rejected forever."""
        recent_rejection = leading.recent_rejection
        if recent_rejection is not None:
            raise recent_rejection

    def append_as_follower(self, batches: memoryview, now_ms: int) -> None:
        """Append batches from the leader unchanged."""
        log = self.log
        self.forget_ends()
        try:
            log.append_as_follower(batches, now_ms, self.leader_epoch)
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
        if self.leading is not None:
            self.leading.turn_ended(has_failed=failure is not None)
        return failure

    def committed_to(self, offset: int, count: int) -> None:
        """Advance the high watermark to `offset`, by `count` bytes."""
        self.high_watermark = offset
        self._commit_waits.reached(offset)
        if self.watchers:
            for wait in list(self.watchers):
                wait.on_bytes_available(count)

    def synced_to(self, offset: int, count: int) -> None:
        """Everything below `offset` is flushed, `count` bytes more than before."""
        if self.leading is not None:
            self._sync_waits.reached(offset)
            self.leading.synced()
        elif self.following is not None:
            self.following.synced()
        elif self.leads_alone and offset > self.high_watermark:  # not during shutdown: other replicas may lack it
            self.pending_bytes = max(0, self.pending_bytes - count)
            self.committed_to(offset, count)

    def commit_wait(self, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` is committed; fails when this broker cannot tell any more."""
        return self._wait(self._commit_waits, offset, self.high_watermark)

    def await_commit(self, offset: int, waiter: CommitWaiter) -> None:
        """The same for a waiter that is not a future: notified at once if there is nothing to wait for."""
        if offset <= self.high_watermark:
            waiter.set_result(None)
        elif self.is_leader:
            self._commit_waits.add(offset, waiter)
        else:
            waiter.set_exception(self._no_longer_led())

    def sync_wait(self, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` is flushed on this broker; fails like `commit_wait`."""
        if self.leads_alone:
            return self.commit_wait(offset)
        return self._wait(self._sync_waits, offset, self.log.recovery_point)

    def _wait(self, waits: OffsetWaiters, offset: int, reached_offset: int) -> asyncio.Future[None]:
        if offset > reached_offset and self.is_leader:
            return waits.wait_for(offset)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if offset <= reached_offset:
            done.set_result(None)
        else:
            done.set_exception(self._no_longer_led())
        return done

    def _no_longer_led(self) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(f"This broker is no longer the leader of {self.name}.")

    # -- reading

    def delete_before(self, offset: int) -> None:
        """Hide the records below an offset, up to the high watermark, here and on all followers."""
        self.advance_start_offset(offset)
        leading = self.leading
        if leading is not None and leading.machine.low_watermark < offset:
            # Retention may have moved this log start before: idle followers have not been sent it then.
            for follower in list(self.followers):
                follower.on_committed()  # its next fetch response carries the log start offset

    def advance_start_offset(self, offset: int) -> None:
        """Hide the records below an offset on this replica."""
        if offset > self.log.start_offset:
            self.log.advance_start_offset(offset)
            self.offsets_changed()

    def offsets_changed(self) -> None:
        """The log start has moved, or the high watermark not forward: fetch sessions look at the partition again."""
        for watcher in list(self.watchers):
            watcher.on_bytes_available(0)

    @property
    def last_stable_offset(self) -> int:
        """Below it, every transaction has ended with a committed marker."""
        return self.log.last_stable_offset(self.high_watermark)

    def read(self, offset: int, max_bytes: int, until_offset: int, *, at_least_one: bool) -> FileSlice | None:
        if self.damage is not None:
            until_offset = self._before_damage(offset, until_offset)
        try:
            return self.log.read(offset, max_bytes, until_offset=until_offset, at_least_one=at_least_one)
        except CorruptBatch as error:
            damage = unreadable_from(offset, error)
            self.mark_damaged(damage)
            raise self._corrupt_error(damage) from error
        except OSError as error:
            self._on_disk_error(self, error)
            raise StorageFailed(f"Cannot read {self.name}: {error.strerror}.") from error

    def check_batch(self, offset: int) -> None:
        """Verify a batch that a follower fetches repeatedly, because it cannot append it."""
        damage = find_corruption_at(self.log, offset)
        if damage is not None:
            self.mark_damaged(damage)
            raise StorageFailed(f"{self.name} is corrupt: {damage}.")

    def mark_damaged(self, damage: CorruptRange) -> None:
        """Stop serving the corrupt range."""
        if not self.corrupt_ranges.add(damage):
            return
        if self.damage is None or damage.offset < self.damage.offset:
            self.damage = damage
        if self.on_damage is not None:
            self.on_damage(self, damage)

    def mark_segment_damaged(self, segment: Segment, found: Sequence[CorruptRange]) -> None:
        """A segment was verified: its corrupt ranges are not served, the batches beside them are."""
        for each in found:
            segment.verification.mark_corrupt(each)
            self.mark_damaged(each)

    def _before_damage(self, offset: int, until_offset: int) -> int:
        damage = self.corrupt_ranges.first_after(offset)
        if damage is None:
            return until_offset
        if damage.offset <= offset:
            raise self._corrupt_error(damage)
        return min(until_offset, damage.offset)

    def _corrupt_error(self, damage: CorruptRange) -> KafkaError:
        """Clients retry with another replica; without one they must know that the records are lost."""
        text = f"{self.name} is corrupt: {damage}."
        return CorruptMessage(text) if self.leads_alone else StorageFailed(text)

    # -- roles

    def lead_alone(self, leader_epoch: int) -> None:
        """There is no other replica: everything in the log (or flushed, where required) is committed."""
        self._take_role(leader_epoch, is_leader=True)
        self.leads_alone = True
        offset = self.durable_offset
        if offset > self.high_watermark:
            self.committed_to(offset, 0)

    def lead(self, leader_epoch: int, leading: "LeaderRole") -> None:
        """Lead with followers; commit waiters of our previous epoch keep waiting."""
        self._take_role(leader_epoch, is_leader=True)
        self.leading = leading
        if self.log.recovery_point < self.log.end_offset:
            self._flush_if_due(self.log.settings.flush_messages)

    def follow(self, leader_epoch: int, following: "FollowerRole") -> None:
        """Another broker leads, or none: commit waiters and delayed fetches fail."""
        self._take_role(leader_epoch, is_leader=False)
        self.following = following
        self._fail_waits(self._no_longer_led())

    def _fail_waits(self, error: NotLeaderOrFollower) -> None:
        self._commit_waits.fail(error)
        self._sync_waits.fail(error)
        self.wake()

    def _take_role(self, leader_epoch: int, *, is_leader: bool) -> None:
        self.leader_epoch = leader_epoch
        self.is_leader = is_leader
        self.leads_alone = False
        self._end_role()
        self.offsets_changed()  # sessions check the leader epoch of their clients

    def _end_role(self) -> None:
        if self.leading is not None:
            self.leading.end()
        self.leading = self.following = None
        for follower in list(self.followers):
            follower.on_leader_changed()

    @property
    def is_followed(self) -> bool:
        """Whether this broker is a follower, and learns the high watermark from a leader."""
        return self.following is not None and self.following.machine.leader != NO_NODE

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Reject a client whose leader epoch is older or newer than ours."""
        if not self.is_open:
            raise NotLeaderOrFollower(f"This broker no longer has a replica of {self.name}.")
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpoch(
                f"{self.name} has leader epoch {self.leader_epoch}, but the request has an older one."
            )
        raise UnknownLeaderEpoch(f"{self.name} has leader epoch {self.leader_epoch}, but the request has a newer one.")

    def wake(self) -> None:
        """Have every delayed fetch check its partitions again."""
        for wait in list(self.watchers):
            wait.wake()

    def close(self) -> None:
        """The partition is deleted or the broker stops: fail all waiters."""
        self.is_open = self.is_leader = self.leads_alone = False
        self._end_role()
        self._fail_waits(NotLeaderOrFollower(f"This broker no longer has a replica of {self.name}."))
