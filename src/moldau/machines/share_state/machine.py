"""The share coordinator's machine: the durable states of share partitions, each fenced by two epochs.

The state epoch counts initializations: a write with an older one comes from a leader that does not know that the state
was reset. The leader epoch is that of the partition's leader: a read by a new leader fences all writes of older ones.

A state is in the log as a snapshot and the updates after it. After so many updates the next write becomes a snapshot
again, so that all records of the partition before it are redundant. The log can be deleted up to the oldest snapshot of
any partition. A partition that is not written any more would keep it from being deleted; once the log is long enough,
such cold partitions get new snapshots.
"""

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from moldau.machines.decision import Decision, Now, SetTimer, respond
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.share_state.records import (
    NO_COUNT,
    NOT_UPDATED,
    Record,
    StateKey,
    batches_of,
    key_of,
    snapshot_record,
    snapshot_tombstone,
    update_record,
)
from moldau.machines.share_state.settings import (
    KEYS_PER_STEP,
    RETAINED_RECORDS_MIN,
    STATE_BATCHES_MAX,
    ShareStateSettings,
)
from moldau.machines.share_state.state_batches import combine
from moldau.machines.shares.state import UNINITIALIZED_START_OFFSET, ShareState, StateBatch, StateWrite
from moldau.model.errors import (
    FencedLeaderEpoch,
    FencedStateEpoch,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from moldau.model.ids import NO_EPOCH, TopicId
from moldau.model.units import SECOND_MS
from moldau.wire import messages

ORPHAN_CHECK_MS = 5.0 * SECOND_MS  # after an election, and while the metadata is not complete


@dataclass(frozen=True, slots=True)
class OrphansDue:
    """Time to look for states of deleted topics."""


@dataclass(frozen=True, slots=True)
class SnapshotsDue:
    """Time to write snapshots of cold partitions."""


@dataclass(frozen=True, slots=True)
class PruneDue:
    """Time to delete the records before the oldest snapshot."""


@dataclass(frozen=True, slots=True)
class PruneLog:
    """Delete the records before this offset."""

    offset: int


class PartitionState(NamedTuple):
    """The state of a share partition. Immutable."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int  # wall time
    written_ms: int
    updates: int = 0  # since the last snapshot
    snapshot_offset: int = 0  # of the last snapshot in the log

    @property
    def share_state(self) -> ShareState:
        return ShareState(self.state_epoch, self.start_offset, self.batches)


class Summary(NamedTuple):
    """The result of ReadShareGroupStateSummary."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    complete_count: int = NO_COUNT


class ShareStateMachine:
    """Decisions for requests of share-partition leaders and group coordinators. Only records change `states`."""

    def __init__(
        self,
        settings: ShareStateSettings,
        *,
        wall_offset_ms: float = 0.0,
        image: Callable[[], MetadataImage] = MetadataImage,
        newest_image: Callable[[], MetadataImage | None] = lambda: None,
    ) -> None:
        """`newest_image` has every existing topic, or is None while that is not certain."""
        self.settings = settings
        self.states: dict[StateKey, PartitionState] = {}
        self.next_offset = 0  # after the last record
        self.start_offset: int | None = None  # of the log, as far as it is known
        self._image = image
        self._newest_image = newest_image
        self._wall_offset_ms = wall_offset_ms

    # Replay

    def apply(self, record: Record, offset: int) -> None:
        """An update without a snapshot before it was pruned together with that: a later snapshot follows."""
        key, value = record
        self.next_offset = offset + 1
        if self.start_offset is None:
            self.start_offset = offset
        state_key = key_of(key)
        if isinstance(key, messages.ShareSnapshotKey):
            if value is None:
                self.states.pop(state_key, None)
            elif isinstance(value, messages.ShareSnapshotValue):
                self.states[state_key] = _from_snapshot(value, offset)
        elif isinstance(value, messages.ShareUpdateValue) and state_key in self.states:
            self.states[state_key] = _updated(self.states[state_key], value)

    # Requests

    def decide_initialize(
        self, key: StateKey, state_epoch: int, start_offset: int, *, now: Now
    ) -> Decision[Record, None]:
        """Create or reset a state. A repeated request with the same epoch changes nothing."""
        self._check_partition(key)
        held = self.states.get(key)
        if held is not None and state_epoch < held.state_epoch:
            raise FencedStateEpoch(f"The state epoch is {held.state_epoch}, not {state_epoch}.")
        if held is not None and state_epoch == held.state_epoch:
            return respond(None)
        value = messages.ShareSnapshotValue(
            snapshot_epoch=0 if held is None else held.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0 if held is None else held.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=NO_COUNT if start_offset == UNINITIALIZED_START_OFFSET else 0,
            create_timestamp=now.wall_ms,
            write_timestamp=now.wall_ms,
        )
        return respond(None, [snapshot_record(key, value)])

    def decide_read(self, key: StateKey, leader_epoch: int, *, now: Now) -> Decision[Record, ShareState]:
        """Return the state for the leader of this epoch; from now on writes of older leaders are fenced."""
        held = self._existing(key, "Read")
        _check_leader_epoch(held, leader_epoch)
        if leader_epoch in (NO_EPOCH, held.leader_epoch):
            return respond(held.share_state)
        write = StateWrite(NOT_UPDATED, held.complete_count, ())
        return respond(held.share_state, [self._write_record(key, held, held.state_epoch, leader_epoch, write, now)])

    def decide_write(
        self, key: StateKey, state_epoch: int, leader_epoch: int, write: StateWrite, *, now: Now
    ) -> Decision[Record, None]:
        """Persist changed states of records, and the start offset."""
        held = self._existing(key, "Write")
        _check_leader_epoch(held, leader_epoch)
        if state_epoch not in (NO_EPOCH, held.state_epoch) and state_epoch < held.state_epoch:
            raise FencedStateEpoch(f"The state epoch is {held.state_epoch}, not {state_epoch}.")
        _check_batches(write.batches)
        record = self._write_record(key, held, state_epoch, leader_epoch, write, now)
        if len(held.batches) + len(write.batches) > STATE_BATCHES_MAX:
            raise InvalidRequest(f"A share partition may have up to {STATE_BATCHES_MAX} state batches.")
        return respond(None, [record])

    def decide_delete(self, key: StateKey) -> Decision[Record, None]:
        """Delete a state; a missing one is deleted already."""
        return respond(None, [snapshot_tombstone(key)] if key in self.states else ())

    def summary(self, key: StateKey) -> Summary:
        """Return the epochs and the start offset; those of an uninitialized state if there is none."""
        held = self.states.get(key)
        if held is None:
            return Summary()
        return Summary(held.state_epoch, held.leader_epoch, held.start_offset, held.complete_count)

    def _existing(self, key: StateKey, operation: str) -> PartitionState:
        self._check_partition(key)
        held = self.states.get(key)
        if held is None:
            raise InvalidRequest(f"{operation} operation on uninitialized share partition not allowed.")
        return held

    def _check_partition(self, key: StateKey) -> None:
        _, topic_id, partition = key
        topic = self._image().topics_by_id.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            raise UnknownTopicOrPartition("The topic partition is not in the metadata of the share coordinator.")

    def _write_record(
        self, key: StateKey, held: PartitionState, state_epoch: int, leader_epoch: int, write: StateWrite, now: Now
    ) -> Record:
        """An update, or a snapshot that includes it if there were enough updates."""
        if held.updates < self.settings.share_coordinator_snapshot_update_records_per_snapshot and (
            state_epoch in (NO_EPOCH, held.state_epoch)
        ):
            update = messages.ShareUpdateValue(
                snapshot_epoch=held.snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=write.start_offset,
                delivery_complete_count=write.delivery_complete_count,
                state_batches=[
                    messages.ShareUpdateValue.StateBatch(
                        first_offset=each.first_offset,
                        last_offset=each.last_offset,
                        delivery_state=each.delivery_state,
                        delivery_count=each.delivery_count,
                    )
                    for each in write.batches
                ],
            )
            return update_record(key, update)
        start_offset = max(held.start_offset, write.start_offset)
        after = held._replace(
            snapshot_epoch=held.snapshot_epoch + 1,
            state_epoch=max(held.state_epoch, state_epoch),
            leader_epoch=max(held.leader_epoch, leader_epoch),
            start_offset=start_offset,
            complete_count=write.delivery_complete_count,
            batches=combine(held.batches, write.batches, start_offset),
            written_ms=now.wall_ms,
        )
        return snapshot_record(key, _snapshot(after))

    # Cleanup

    def decide_topics_deleted(self, topic_ids: Set[TopicId]) -> Decision[Record, bool]:
        """Delete the states of deleted topics, a bounded number at a time; return whether none are left."""
        found = [key for key in self.states if key[1] in topic_ids]
        return respond(len(found) <= KEYS_PER_STEP, [snapshot_tombstone(key) for key in found[:KEYS_PER_STEP]])

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:  # noqa: ARG002 - the machine's protocol
        return Decision(
            timers=(
                SetTimer(OrphansDue(), ORPHAN_CHECK_MS),
                SetTimer(SnapshotsDue(), self.settings.share_coordinator_cold_partition_snapshot_interval_ms),
                SetTimer(PruneDue(), self.settings.share_coordinator_state_topic_prune_interval_ms),
            )
        )

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        match event:
            case OrphansDue():
                return self._delete_orphans()
            case SnapshotsDue():
                return self._snapshot_cold(round(now_ms + self._wall_offset_ms))
            case PruneDue():
                return self._prune()
        raise AssertionError(f"unknown timer {event}")

    def _delete_orphans(self) -> Decision[Record, None]:
        """After an election: topics may have been deleted while this shard had no leader."""
        image = self._newest_image()
        if image is None:
            return Decision(timers=(SetTimer(OrphansDue(), ORPHAN_CHECK_MS),))
        orphans = (key for key in self.states if key[1] not in image.topics_by_id)
        records = [snapshot_tombstone(key) for key in islice(orphans, KEYS_PER_STEP)]
        timers = (SetTimer(OrphansDue(), 0.0),) if len(records) == KEYS_PER_STEP else ()
        return Decision(records, timers=timers)

    def _snapshot_cold(self, wall_ms: int) -> Decision[Record, None]:
        """Write snapshots of the partitions that keep the log from being pruned, oldest first."""
        retained = max(RETAINED_RECORDS_MIN, 4 * len(self.states))
        oldest = self.next_offset - retained
        cold = sorted(
            (state.snapshot_offset, key) for key, state in self.states.items() if state.snapshot_offset < oldest
        )
        records: list[Record] = []
        batches = 0
        for _, key in cold[:KEYS_PER_STEP]:
            state = self.states[key]
            batches += len(state.batches)
            if records and batches > STATE_BATCHES_MAX:
                break
            after = state._replace(snapshot_epoch=state.snapshot_epoch + 1, written_ms=wall_ms)
            records.append(snapshot_record(key, _snapshot(after)))
        interval_ms = self.settings.share_coordinator_cold_partition_snapshot_interval_ms
        delay_ms = 0.0 if len(cold) > len(records) else interval_ms
        return Decision(records, timers=(SetTimer(SnapshotsDue(), delay_ms),))

    def _prune(self) -> Decision[Record, None]:
        timers = (SetTimer(PruneDue(), self.settings.share_coordinator_state_topic_prune_interval_ms),)
        offset = self.redundant_offset
        if self.start_offset is None or offset <= self.start_offset:
            return Decision(timers=timers)
        self.start_offset = offset  # soft state: if the deletion fails, the next leader finds the old start
        return Decision(timers=timers, effects=(PruneLog(offset),))

    @property
    def redundant_offset(self) -> int:
        """The offset before which no record is needed."""
        return min((state.snapshot_offset for state in self.states.values()), default=self.next_offset)


def _check_leader_epoch(held: PartitionState, leader_epoch: int) -> None:
    if leader_epoch != NO_EPOCH and leader_epoch < held.leader_epoch:
        raise FencedLeaderEpoch(f"The leader epoch is {held.leader_epoch}, not {leader_epoch}.")


def _check_batches(batches: Sequence[StateBatch]) -> None:
    if any(not 0 <= each.first_offset <= each.last_offset for each in batches):
        raise InvalidRequest("A state batch must have a first offset from 0 to its last offset.")


def _from_snapshot(value: messages.ShareSnapshotValue, offset: int) -> PartitionState:
    return PartitionState(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        complete_count=value.delivery_complete_count,
        batches=combine((), batches_of(value), value.start_offset),
        created_ms=value.create_timestamp,
        written_ms=value.write_timestamp,
        snapshot_offset=offset,
    )


def _updated(state: PartitionState, value: messages.ShareUpdateValue) -> PartitionState:
    start_offset = max(state.start_offset, value.start_offset)
    return state._replace(
        leader_epoch=max(state.leader_epoch, value.leader_epoch),
        start_offset=start_offset,
        complete_count=value.delivery_complete_count,
        batches=combine(state.batches, batches_of(value), start_offset),
        updates=state.updates + 1,
    )


def _snapshot(state: PartitionState) -> messages.ShareSnapshotValue:
    return messages.ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=[
            messages.ShareSnapshotValue.StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.delivery_state,
                delivery_count=each.delivery_count,
            )
            for each in state.batches
        ],
    )
