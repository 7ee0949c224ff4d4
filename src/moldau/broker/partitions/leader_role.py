"""The leader role of a partition with followers: carries out the effects of its replication machine.

One LeaderRole per leader epoch. Inputs are appends, flushes, follower fetches, ticks and metadata changes; the machine
decides the high watermark and proposes ISR changes:

    append / flush / fetch -> LeaderMachine -> high watermark -> commit waiters and delayed fetches
    tick / metadata        -> LeaderMachine -> ProposeIsr -> AlterPartition (replicas/isr_changes.py)

The high watermark never exceeds the log end offset of any ISR member, nor this broker's flushed offset where the topic
requires flushed records.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.broker.partitions.leadership_check import LeadershipCheck
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.remote_follower import RemoteFollower
from moldau.broker.partitions.uncommitted_bytes import UncommittedBytes
from moldau.broker.partitions.waiters import OffsetWaiters
from moldau.machines.metadata.image import PartitionImage
from moldau.machines.replication import LeaderMachine, ProposeIsr
from moldau.model.errors import (
    ErrorCode,
    KafkaError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OutOfOrderSequence,
    UnknownLeaderEpoch,
)
from moldau.model.ports import Clock

IN_FLIGHT_MS: Final = 10_000.0  # how long a batch may be in flight that a producer pipelined behind a rejected one

Propose = Callable[["LeaderRole", ProposeIsr], None]


class LeaderRole:
    """One leader epoch of one partition. The high watermark comes from the machine, not from the log end offset."""

    __slots__ = (
        "_clock",
        "_coalesced_bytes",
        "_last_rejection",
        "_propose",
        "_rejected_ms",
        "_since_ms",
        "_start_waits",
        "_uncommitted",
        "leadership_check",
        "machine",
        "partition",
    )

    def __init__(self, partition: Partition, machine: LeaderMachine, clock: Clock, propose: Propose) -> None:
        self.partition = partition
        self.machine = machine
        self._clock = clock
        self.leadership_check = LeadershipCheck(partition, machine)
        self._propose = propose
        self._uncommitted = UncommittedBytes()
        self._coalesced_bytes = 0
        self._start_waits = OffsetWaiters()
        self._since_ms = clock.monotonic_ms()
        self._last_rejection: KafkaError | None = None  # of the last rejected batch
        self._rejected_ms = 0.0

    @property
    def recent_rejection(self) -> KafkaError | None:
        """The error of a batch rejected a moment ago, if any: batches pipelined behind it may still arrive."""
        name, now_ms = self.partition.name, self._clock.monotonic_ms()
        if now_ms - self._since_ms < IN_FLIGHT_MS:
            return NotLeaderOrFollower(
                f"This broker has just become the leader of {name}; earlier batches were not appended."
            )
        if self._last_rejection is not None and now_ms - self._rejected_ms < IN_FLIGHT_MS:
            return type(self._last_rejection)(f"{name}: an earlier batch was rejected: {self._last_rejection.message}")
        return None

    def sequence_error(self, gap: OutOfOrderSequence) -> KafkaError:
        """The error for a sequence gap. Producers pipeline batches: if the first was rejected (not the leader, ISR too
        small, disk full), those behind it must be rejected with the same error even if they could be appended by then.
        librdkafka reacts to a gap with a new epoch and would duplicate what it has sent.
        """
        recent_rejection = self.recent_rejection
        return gap if recent_rejection is None else recent_rejection

    def check_first_sequence(self, producer_id: int) -> None:
        """The same for a producer that is unknown here while its first batch does not start at sequence 0: if that
        batch were appended, the one before it would be rejected forever."""
        if producer_id in self.partition.log.producers.by_id:
            return
        recent_rejection = self.recent_rejection
        if recent_rejection is not None:
            raise recent_rejection

    def record_rejection(self, error: KafkaError) -> KafkaError:
        """Remember that a batch was rejected with a retriable error: others behind it may be in flight."""
        self._last_rejection, self._rejected_ms = error, self._clock.monotonic_ms()
        return error

    def begin(self) -> None:
        """Apply the machine's initial high watermark, which may be higher if there is no follower to wait for."""
        self._settle()

    # -- the log

    def appended(self, count: int, *, is_written: bool) -> None:
        """A batch of `count` bytes. Followers are notified when it is written: at once, or when the turn ends."""
        self._coalesced_bytes += count
        if is_written:
            self.written()

    def written(self) -> None:
        """Appended records can be fetched now."""
        partition, machine = self.partition, self.machine
        count, self._coalesced_bytes = self._coalesced_bytes, 0
        end_offset = partition.log.end_offset
        self._uncommitted.grew(end_offset, count)
        followers = list(partition.followers)
        for each in followers:
            if each.is_counted and each.offset == machine.end_offset:
                self._was_caught_up(each)
        machine.appended(end_offset, partition.durable_offset, self._clock.monotonic_ms())
        self._settle()
        for each in followers:
            each.on_appended(count)

    def _was_caught_up(self, follower: RemoteFollower) -> None:
        """The follower was caught up until now by its last fetch, even if that did not name this partition again."""
        session = follower.session
        progress = self.machine.followers.get(session.replica)
        if progress is None or progress.broker_epoch != session.broker_epoch:
            return
        if session.fetched_ms > progress.last_fetch_ms:
            self._count(follower)

    def synced(self) -> None:
        """More of the log is flushed."""
        partition = self.partition
        self.machine.appended(partition.log.end_offset, partition.durable_offset, self._clock.monotonic_ms())
        self._settle()

    def turn_ended(self, *, has_failed: bool) -> None:
        """The batches coalesced in this turn are written, or their write has failed."""
        end_offset = self.partition.log.end_offset
        if not has_failed or end_offset > self.machine.end_offset:  # at least some of it was written
            self.written()
            return
        self._coalesced_bytes = 0
        self.machine.append_undone(end_offset)

    # -- followers

    def fetched(self, follower: RemoteFollower) -> None:
        """The follower fetched at its offset, and its log is a prefix of this one."""
        if follower.session.replica not in self.machine.followers:
            # It knows our leader epoch, so its metadata is newer: it will be a replica here in a moment.
            raise UnknownLeaderEpoch(f"Broker {follower.session.replica} is not a known replica.")
        self._count(follower)
        follower.is_counted = True
        self.leadership_check.follower_added(follower)
        self._settle()
        if self._start_waits.waits:
            self._start_waits.reached(self.machine.low_watermark)

    def _count(self, follower: RemoteFollower) -> None:
        session = follower.session
        proposal = self.machine.follower_fetched(
            session.replica, session.broker_epoch, follower.offset, session.fetched_ms, follower.log_start_offset
        )
        if proposal is not None:
            self._propose(self, proposal)

    def start_wait(self, offset: int) -> asyncio.Future[None]:
        """Done when no replica on a live broker starts below `offset`."""
        wait = self._start_waits.wait_for(offset)
        self._start_waits.reached(self.machine.low_watermark)
        return wait

    def end(self) -> None:
        """Another broker leads, or the next epoch has begun."""
        self.leadership_check.end()
        self._start_waits.fail(self.partition.role.not_leader_error())

    def check_enough(self) -> None:
        """Reject a write with acks=all when the ISR is smaller than `min.insync.replicas`."""
        if self.machine.is_under_min_isr:
            words = (
                f"{self.partition.name} has {len(self.machine.isr)} in-sync replica(s), but "
                f"min.insync.replicas is {self.partition.log.settings.min_insync_replicas}."
            )
            raise self.record_rejection(NotEnoughReplicas(words))

    def check_enough_after_append(self) -> None:
        """The same for a write that is committed, by an ISR that has shrunk meanwhile."""
        if self.machine.is_under_min_isr:
            raise NotEnoughReplicasAfterAppend(
                f"The batch is in {self.partition.name}, but the ISR has shrunk to {len(self.machine.isr)} replica(s)."
            )

    # -- the controller, time and settings

    def ticked(self) -> None:
        self._done(self.machine.ticked(self._clock.monotonic_ms()))
        self._start_waits.reached(self.machine.low_watermark)

    def image_changed(self, where: PartitionImage) -> None:
        now_ms = self._clock.monotonic_ms()
        self._done(self.machine.image_changed(where.partition_epoch, where.replicas, where.isr, now_ms))

    def isr_accepted(self, proposal: ProposeIsr, partition_epoch: int, isr: tuple[int, ...]) -> None:
        self._done(self.machine.isr_accepted(proposal, partition_epoch, isr, self._clock.monotonic_ms()))

    def isr_rejected(self, proposal: ProposeIsr, code: ErrorCode) -> None:
        self._done(self.machine.isr_rejected(proposal, code, self._clock.monotonic_ms()))

    def settings_changed(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self.machine.min_isr_changed(self.partition.log.settings.min_insync_replicas, now_ms)
        self.machine.appended(self.partition.log.end_offset, self.partition.durable_offset, now_ms)
        self._settle()

    def _done(self, proposal: ProposeIsr | None) -> None:
        """The response to an ISR proposal of an earlier epoch is ignored."""
        if self.partition.role.leading is not self:
            return
        if proposal is not None:
            self._propose(self, proposal)
        self.leadership_check.successors_changed()
        self._settle()

    def _settle(self) -> None:
        """Publish the machine's high watermark as the partition's."""
        high_watermark = self.machine.high_watermark
        partition = self.partition
        if high_watermark > partition.high_watermark:
            partition.committed_to(high_watermark, self._uncommitted.take(high_watermark))
            for each in list(partition.followers):
                each.on_committed()
