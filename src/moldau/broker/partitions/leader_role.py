"""A partition that this node leads and others follow: what its machine says is put into effect here."""

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
    UnknownLeaderEpoch,
)
from moldau.model.ports import Clock

UNDER_WAY_MS: Final = 10_000.0  # so long may a request be, that a producer sent behind one that was sent away

Propose = Callable[["LeaderRole", ProposeIsr], None]


class LeaderRole:
    """One leader epoch of one partition. The high watermark is the machine's, never that of the log's end."""

    __slots__ = (
        "_clock",
        "_gathered_bytes",
        "_propose",
        "_refusal",
        "_refused_ms",
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
        self._gathered_bytes = 0
        self._start_waits = OffsetWaiters()
        self._since_ms = clock.monotonic_ms()
        self._refusal: KafkaError | None = None  # of the last batch that was sent away
        self._refused_ms = 0.0

    @property
    def recent_rejection(self) -> KafkaError | None:
        """Why a batch that came a moment ago was not taken, if one may have been: others behind it are under way."""
        name, now_ms = self.partition.name, self._clock.monotonic_ms()
        if now_ms - self._since_ms < UNDER_WAY_MS:
            return NotLeaderOrFollower(f"This broker leads {name} only now, and has not taken what came before.")
        if self._refusal is not None and now_ms - self._refused_ms < UNDER_WAY_MS:
            return type(self._refusal)(f"{name} has not taken what came before: {self._refusal.message}")
        return None

    def refuse(self, error: KafkaError) -> KafkaError:
        """A batch is sent away for now. Others behind it may be under way."""
        self._refusal, self._refused_ms = error, self._clock.monotonic_ms()
        return error

    def begin(self) -> None:
        """The machine may know more to be committed, where nobody has to be waited for."""
        self._settle()

    # -- the log

    def appended(self, count: int, *, is_written: bool) -> None:
        """A batch of `count` bytes. Followers hear of it when it is written: at once, or when the turn ends."""
        self._gathered_bytes += count
        if is_written:
            self.written()

    def written(self) -> None:
        """What was appended can be fetched now."""
        partition, machine = self.partition, self.machine
        count, self._gathered_bytes = self._gathered_bytes, 0
        end_offset = partition.log.end_offset
        self._uncommitted.grew(end_offset, count)
        followers = list(partition.followers)
        for each in followers:
            if each.is_counted and each.offset == machine.end_offset:
                self._was_caught_up(each)
        machine.appended(end_offset, partition.durable_offset, self._clock.monotonic_ms())
        self._settle()
        for each in followers:
            each.grew(count)

    def _was_caught_up(self, follower: RemoteFollower) -> None:
        """Until now it was: its last fetch said so, though it may not have named this partition again."""
        session = follower.session
        progress = self.machine.followers.get(session.replica)
        if progress is None or progress.broker_epoch != session.broker_epoch:
            return
        if session.fetched_ms > progress.last_fetch_ms:
            self._count(follower)

    def synced(self) -> None:
        """More of the log is on disk."""
        partition = self.partition
        self.machine.appended(partition.log.end_offset, partition.durable_offset, self._clock.monotonic_ms())
        self._settle()

    def turn_ended(self, *, has_failed: bool) -> None:
        """What was gathered in this turn is written, or could not be."""
        end_offset = self.partition.log.end_offset
        if not has_failed or end_offset > self.machine.end_offset:  # some of it was written at least
            self.written()
            return
        self._gathered_bytes = 0
        self.machine.append_undone(end_offset)

    # -- followers

    def fetched(self, follower: RemoteFollower) -> None:
        """It asked for what is at its offset, and its log is a prefix of ours."""
        if follower.session.replica not in self.machine.followers:
            # In our leader epoch, so its metadata is newer than ours: it will be one of the replicas in a moment.
            raise UnknownLeaderEpoch(f"Broker {follower.session.replica} is not known here as a replica.")
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
        """Done when no copy on a broker that is up begins before `offset`."""
        wait = self._start_waits.wait_for(offset)
        self._start_waits.reached(self.machine.low_watermark)
        return wait

    def end(self) -> None:
        """Somebody else leads, or the next epoch of ours has begun."""
        self.leadership_check.end()
        self._start_waits.fail(NotLeaderOrFollower(f"This broker leads {self.partition.name} no longer."))

    def check_enough(self) -> None:
        """Refuse a write that is to be on `min.insync.replicas` replicas, when fewer are in sync."""
        if self.machine.is_under_min_isr:
            words = (
                f"{self.partition.name} has {len(self.machine.isr)} replica(s) in sync, and "
                f"min.insync.replicas is {self.partition.log.settings.min_insync_replicas}."
            )
            raise self.refuse(NotEnoughReplicas(words))

    def check_enough_after_append(self) -> None:
        """The same for a write that is committed, by those who were in sync until a moment ago."""
        if self.machine.is_under_min_isr:
            raise NotEnoughReplicasAfterAppend(
                f"{self.partition.name} took it, but has only {len(self.machine.isr)} replica(s) in sync now."
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
        """The controller may have been asked in this epoch and answer in the next: then it is nothing to us."""
        if self.partition.leading is not self:
            return
        if proposal is not None:
            self._propose(self, proposal)
        self.leadership_check.successors_changed()
        self._settle()

    def _settle(self) -> None:
        """The high watermark of the machine becomes that of the partition."""
        high_watermark = self.machine.high_watermark
        partition = self.partition
        if high_watermark > partition.high_watermark:
            partition.committed_to(high_watermark, self._uncommitted.take(high_watermark))
            for each in list(partition.followers):
                each.committed()
