"""A partition that this node follows: what came from its leader goes into the log, and what must go is cut."""

from collections.abc import Callable
from typing import Any

from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE, Partition
from moldau.broker.partitions.uncommitted_bytes import UncommittedBytes
from moldau.machines.replication import FollowerMachine, RestartAt, Truncation
from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.records.header import HEADER_BYTES, read_header
from moldau.storage.recovery import ProducerReplay
from moldau.wire.follower_fetch import FetchPartition


def _nobody() -> None:
    """Nobody waits."""


class FollowerRole:
    """One leader epoch of one partition, followed."""

    __slots__ = (
        "_asked",
        "_uncommitted",
        "asked_in",
        "failures",
        "go_on",
        "is_held",
        "is_in_session",
        "is_in_sync",
        "key",
        "machine",
        "partition",
        "when_synced",
    )

    def __init__(self, partition: Partition, machine: FollowerMachine, *, is_in_sync: bool) -> None:
        self.partition = partition
        self.key = bytes(partition.topic_id), partition.name.partition
        self.machine = machine
        self.is_in_sync = is_in_sync
        self.is_held = False  # while the leader is asked something else
        self.is_in_session = False
        self.asked_in = 0  # the number of the fetch that named it last, and what that said
        self._asked = NO_EPOCH, NO_OFFSET, NO_EPOCH  # leader epoch, offset, last epoch
        self.failures = 0
        self.go_on: Callable[[], None] = _nobody  # told that there may be a reason less to wait
        self.when_synced: Callable[[], None] = _nobody  # told that all of the log is on disk
        self._uncommitted = UncommittedBytes()

    @property
    def is_current(self) -> bool:
        """Whether the partition is still followed, in this epoch."""
        return self.partition.following is self

    @property
    def may_be_asked_for(self) -> bool:
        return self.is_current and not self.is_held and not self.partition.is_cut

    @property
    def waits_for_sync(self) -> bool:
        """Whether the leader may not be told yet how far the log is: the topic wants it on disk."""
        log = self.partition.log
        return log.settings.flush_messages == FLUSH_EVERY_MESSAGE and log.recovery_point < log.end_offset

    def ask(self, number: int, max_bytes: int) -> FetchPartition:
        """What a fetch says of it."""
        machine = self.machine
        self.asked_in = number
        self._asked = machine.leader_epoch, machine.fetch_offset, machine.last_fetched_epoch
        return FetchPartition(*self.key, *self._asked, self.partition.log.start_offset, max_bytes)

    def is_open_to(self, number: int) -> bool:
        """Whether an answer to fetch `number` still fits the log, and the log is not about to be cut."""
        is_waiting = self.is_current and not self.is_held
        return is_waiting and self.asked_in <= number and self.machine.expects(*self._asked)

    def take(self, answer: Any, now_ms: int) -> int:
        """Append what came, and note what the leader says beside it; how many bytes the log grew by."""
        partition, machine = self.partition, self.machine
        count = len(answer.records or b"")
        if count:
            if partition.log.start_offset == partition.log.end_offset:
                self._begin_with(answer.records)
            partition.append_as_follower(answer.records, now_ms)
            self._uncommitted.grew(partition.log.end_offset, count)
        machine.fetched(answer.high_watermark, answer.log_start_offset)
        if machine.high_watermark > partition.high_watermark:
            partition.committed_to(machine.high_watermark, self._uncommitted.take(machine.high_watermark))
        if machine.log_start_offset > partition.log.start_offset:
            partition.log.advance_start_offset(machine.log_start_offset)
        return count

    def _begin_with(self, records: memoryview) -> None:
        """The leader's log may begin within a batch, where the records before were deleted: an empty one is to hold all
        of that batch, too, though it begins where the leader's does."""
        log = self.partition.log
        if len(records) >= HEADER_BYTES:
            first = read_header(records)
            if first.base_offset < log.end_offset <= first.last_offset:
                log.truncate_fully_and_start_at(first.base_offset)

    def replay_for(self, cut: Truncation) -> ProducerReplay | None:
        """What there is to find out before a cut, if anything, so that the cut itself takes no time."""
        log = self.partition.log
        if isinstance(cut, RestartAt) or not log.segment_base_offsets[0] < cut.end_offset < log.end_offset:
            return None
        return log.replay_producers_below(cut.end_offset)

    def cut(self, cut: Truncation, replay: ProducerReplay | None = None) -> None:
        """Drop from the log what its leader does not have. It is to be synced before the leader is asked again."""
        log = self.partition.log
        if isinstance(cut, RestartAt):
            log.truncate_fully_and_start_at(cut.start_offset)
        else:
            log.truncate_to(cut.end_offset, replay)
        self._uncommitted.cut(log.end_offset)
        self.partition.high_watermark = self.machine.high_watermark

    def synced(self) -> None:
        """More of the log is on disk."""
        if not self.waits_for_sync:
            self.when_synced()
