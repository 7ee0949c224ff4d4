"""One partition as the broker sees it: its log, how far it is committed, and who waits on it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.partitions.remote_follower import RemoteFollower
from moldau.broker.partitions.waiters import CommitWaiter, FetchWatcher, OffsetWaiters
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.runtime.meters import TrafficMeter
from moldau.model.errors import (
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
from moldau.storage.corrupt_range import CorruptRange, find_corruption_at, unreadable_from
from moldau.storage.log import AppendResult, Log

if TYPE_CHECKING:
    from moldau.broker.partitions.follower_role import FollowerRole
    from moldau.broker.partitions.leader_role import LeaderRole

FLUSH_EVERY_MESSAGE: Final = 1
FLUSH_NEVER: Final = 2**63 - 1


class TransactionEnding(NamedTuple):
    """What the marker of a transaction says, and the version of transactions that its producer speaks."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


class Partition:
    """A partition whose log is here: led alone, led with followers, or followed.

    The high watermark says how far readers may see. With one replica that is the end of the log, except where the topic
    asks for every message on disk (`flush.messages=1`): there it is the end of what has been synced. With several, a
    machine says it: `leading` where this node leads, `following` where it does not.
    """

    __slots__ = (
        "_commit_waits",
        "_gathering",
        "_is_careful",
        "_on_disk_error",
        "_request_sync",
        "_sync_waits",
        "damage",
        "followers",
        "following",
        "high_watermark",
        "is_cut",
        "is_given_up",
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
        gathering: WriteCoalescer | None = None,
        high_watermark: int | None = None,
    ) -> None:
        """`high_watermark` is what was known to be committed where there are other replicas; without, all of it is."""
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.traffic = traffic
        self.high_watermark = self.durable_offset if high_watermark is None else min(high_watermark, log.end_offset)
        self.is_open = True
        self.is_leader = True
        self.leading: LeaderRole | None = None  # where others follow
        self.following: FollowerRole | None = None
        self.followers: dict[RemoteFollower, None] = {}  # in the fetch sessions of other brokers
        self.is_cut = False  # and the cut is not on disk yet
        self.damage: CorruptRange | None = None  # the first that was found; it is not served
        self.on_damage: Callable[[Partition], None] | None = None
        self.is_given_up = False  # for what another replica has: the log is to be opened again without the damage
        self.leads_alone = True  # no other replica has a say in what is committed
        self.pending_bytes = 0  # appended, but not yet to be seen
        self.watchers: dict[FetchWatcher, None] = {}
        self._commit_waits = OffsetWaiters()
        self._sync_waits = OffsetWaiters()  # of those who do not care for other replicas
        self._request_sync = request_sync
        self._on_disk_error = on_disk_error
        self._gathering = WriteCoalescer() if gathering is None else gathering
        self._is_careful = False  # the last gathered write failed: the next is written, and answered, by itself

    # -- writing

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> AppendResult:
        """Append one validated batch as its leader; it is in the log when this returns, or when the turn ends."""
        log = self.log
        if (
            header[BASE_SEQUENCE_FIELD] > 0
            and self.leading is not None
            and header[PRODUCER_ID_FIELD] not in log.producers.by_id
        ):
            self._check_beginning(self.leading)
        gathering = self._gathering
        is_buffered = gathering.is_open and not self._is_careful
        if not is_buffered and not gathering.is_empty:
            gathering.write()  # followers are sent this one at once, and whatever else is in the logs they follow
        try:
            if header[ATTRIBUTES_FIELD] & TRANSACTIONAL and not header[ATTRIBUTES_FIELD] & CONTROL:
                log.producers.check_verified(header)
            appended = log.append(batch, header, self.leader_epoch, now_ms, is_buffered=is_buffered)
        except OutOfOrderSequence as gap:
            raise self._answer_to(gap) from None
        except OSError as error:
            self._on_disk_error(self, error)
            failed = StorageFailed(f"{self.name} could not be written: {error.strerror}.")
            raise failed if self.leading is None else self.leading.refuse(failed) from error
        if appended.is_duplicate:
            return appended
        if not is_buffered:
            self._is_careful = False
        elif gathering.newest is not self:
            gathering.add(self)
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
        """Write the marker that ends a transaction here, unless it is there; the offset behind it."""
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
        """Ends of transactions are remembered until they are committed; that must not be many."""
        self.log.last_stable_offset(self.high_watermark)

    def _answer_to(self, gap: OutOfOrderSequence) -> KafkaError:
        """A producer sends several batches at a time. Where the first of them was sent away, because we did not lead,
        too few were in sync or the disk was full, so must be those behind it, though they could be taken by then:
        librdkafka takes a gap for a reason to begin anew, and doubles what it has sent.
        """
        recent_rejection = None if self.leading is None else self.leading.recent_rejection
        return gap if recent_rejection is None else recent_rejection

    def _check_beginning(self, leading: "LeaderRole") -> None:
        """The same for a producer that is not known here and does not begin with its first batch: any other would be
        taken for it, and the first refused for ever."""
        recent_rejection = leading.recent_rejection
        if recent_rejection is not None:
            raise recent_rejection

    def append_as_follower(self, batches: memoryview, now_ms: int) -> None:
        """Append what the leader has, as it is there."""
        log = self.log
        self.forget_ends()
        try:
            log.append_as_follower(batches, now_ms, self.leader_epoch)
        except OSError as error:
            self._on_disk_error(self, error)
            raise StorageFailed(f"{self.name} could not be written: {error.strerror}.") from error
        self.traffic.replication_bytes_in += len(batches)
        self._flush_if_due(log.settings.flush_messages)

    @property
    def durable_offset(self) -> int:
        """Up to where this node's own copy counts: to the end, or to what is on disk where the topic asks for that."""
        log = self.log
        return log.recovery_point if log.settings.flush_messages == FLUSH_EVERY_MESSAGE else log.end_offset

    def bring_to_disk(self) -> None:
        """Where every message is to be on disk before it counts: what an earlier life has written may not be yet."""
        if self.log.settings.flush_messages == FLUSH_EVERY_MESSAGE and self.log.recovery_point < self.log.end_offset:
            self._request_sync(self)

    def _flush_if_due(self, flush_messages: int) -> None:
        if flush_messages == FLUSH_EVERY_MESSAGE or self.log.unflushed_messages >= flush_messages:
            self._request_sync(self)

    def write_buffered(self) -> None:
        """Write what this turn has appended. `take_gathered_failure` says whether that failed."""
        try:
            self.log.write_buffered()
        except OSError as error:
            self._on_disk_error(self, error)

    def take_gathered_failure(self) -> OSError | None:
        """Why what this turn appended could not be written, if so: it is gone, and nobody has seen it."""
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
        """Everything below `offset` may be seen now; `count` bytes more than before."""
        self.high_watermark = offset
        self._commit_waits.reached(offset)
        if self.watchers:
            for wait in list(self.watchers):
                wait.came(count)

    def synced_to(self, offset: int, count: int) -> None:
        """Everything below `offset` is on disk; `count` bytes waited for that."""
        if self.leading is not None:
            self._sync_waits.reached(offset)
            self.leading.synced()
        elif self.following is not None:
            self.following.synced()
        elif self.leads_alone and offset > self.high_watermark:  # not where the node stops: others may lack it
            self.pending_bytes = max(0, self.pending_bytes - count)
            self.committed_to(offset, count)

    def commit_wait(self, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` may be seen; fails when that will not be known here."""
        return self._wait(self._commit_waits, offset, self.high_watermark)

    def await_commit(self, offset: int, waiter: CommitWaiter) -> None:
        """The same for one who is no future: it is told now if there is nothing to wait for."""
        if offset <= self.high_watermark:
            waiter.set_result(None)
        elif self.is_leader:
            self._commit_waits.add(offset, waiter)
        else:
            waiter.set_exception(self._no_longer_led())

    def sync_wait(self, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` is on this node's disk; fails as `commit_wait` does."""
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
        return NotLeaderOrFollower(f"This broker leads {self.name} no longer.")

    # -- reading

    @property
    def last_stable_offset(self) -> int:
        """Up to here every transaction has ended, by a marker that is committed."""
        return self.log.last_stable_offset(self.high_watermark)

    def read(self, offset: int, max_bytes: int, until_offset: int, *, at_least_one: bool) -> FileSlice | None:
        if self.damage is not None:
            until_offset = self._before_damage(self.damage, offset, until_offset)
        try:
            return self.log.read(offset, max_bytes, until_offset=until_offset, at_least_one=at_least_one)
        except CorruptBatch as error:
            self.found(unreadable_from(offset, error))
            raise
        except OSError as error:
            self._on_disk_error(self, error)
            raise StorageFailed(f"{self.name} could not be read: {error.strerror}.") from error

    def check_batch(self, offset: int) -> None:
        """Somebody could not take what was sent from here: is it as it was written?"""
        damage = find_corruption_at(self.log, offset)
        if damage is not None:
            self.found(damage)
            raise StorageFailed(f"{self.name} is damaged: {damage}.")

    def found(self, damage: CorruptRange) -> None:
        """It is not served from now on."""
        if self.damage is None or damage.offset < self.damage.offset:
            self.damage = damage
            if self.on_damage is not None:
                self.on_damage(self)

    def _before_damage(self, damage: CorruptRange, offset: int, until_offset: int) -> int:
        if damage.offset <= offset < damage.end_offset:
            raise StorageFailed(f"{self.name} is damaged: {damage}.")
        return min(until_offset, damage.offset) if offset < damage.offset else until_offset

    # -- who leads

    def lead_alone(self, leader_epoch: int) -> None:
        """There is no other replica: what is in the log, or on disk where that is asked for, is committed."""
        self._take_role(leader_epoch, is_leader=True)
        self.leads_alone = True
        offset = self.durable_offset
        if offset > self.high_watermark:
            self.committed_to(offset, 0)

    def lead(self, leader_epoch: int, leading: "LeaderRole") -> None:
        """Lead others; who waits for an offset to be committed goes on waiting, if we led before."""
        self._take_role(leader_epoch, is_leader=True)
        self.leading = leading
        if self.log.recovery_point < self.log.end_offset:
            self._flush_if_due(self.log.settings.flush_messages)

    def follow(self, leader_epoch: int, following: "FollowerRole") -> None:
        """Another broker leads, or none does: what waits for the log to grow or to be committed waits in vain."""
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

    def _end_role(self) -> None:
        if self.leading is not None:
            self.leading.end()
        self.leading = self.following = None
        for follower in list(self.followers):
            follower.changed()

    @property
    def is_followed(self) -> bool:
        """Whether this node follows a leader, from which it hears what is committed."""
        return self.following is not None and self.following.machine.leader != NO_NODE

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose view of the leadership is older or newer than ours."""
        if not self.is_open:
            raise NotLeaderOrFollower(f"{self.name} is no longer here.")
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.name} is in leader epoch {self.leader_epoch}.")
        raise UnknownLeaderEpoch(f"{self.name} is only in leader epoch {self.leader_epoch}.")

    def wake(self) -> None:
        """Let every waiting fetch look again."""
        for wait in list(self.watchers):
            wait.wake()

    def close(self) -> None:
        """It is deleted or the node stops: nobody waits on it any longer."""
        self.is_open = self.is_leader = self.leads_alone = False
        self._end_role()
        self._fail_waits(NotLeaderOrFollower(f"{self.name} is no longer here."))
