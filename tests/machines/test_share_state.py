"""The share coordinator's machine: states of share partitions, fencing, snapshots and pruning."""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from share_state_scene import KEY, TOPIC_ID, StateScene, image_of

from moldau.machines.share_state import ShareStateSettings
from moldau.machines.share_state.settings import KEYS_PER_STEP, RETAINED_RECORDS_MIN
from moldau.machines.shares.state import ShareState, StateBatch
from moldau.model.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest, UnknownTopicOrPartition
from moldau.wire import messages
from moldau.wire.data_records import decode_share_state_record

pytestmark = pytest.mark.proves("C8")

FEW_UPDATES = ShareStateSettings(share_coordinator_snapshot_update_records_per_snapshot=2)


def kinds(scene: StateScene) -> list[str]:
    names = {messages.ShareSnapshotKey: "snapshot", messages.ShareUpdateKey: "update"}
    return [names[type(decode_share_state_record(key, value)[0])] for _, key, value in scene.log]


class TestStates:
    def test_written_state_is_read_by_a_new_coordinator(self) -> None:
        scene = StateScene()
        scene.initialize()
        assert scene.read() == ShareState(1, -1)
        scene.write((10, 19, 2, 1), (20, 24, 0, 1), start_offset=10)
        scene.write((20, 21, 2, 2), start_offset=20, complete_count=2)
        scene.elect()
        assert scene.read() == ShareState(1, 20, (StateBatch(20, 21, 2, 2), StateBatch(22, 24, 0, 1)))
        assert scene.machine.summary(KEY) == (1, 0, 20, 2)

    def test_start_offset_never_moves_back(self) -> None:
        scene = StateScene()
        scene.initialize()
        scene.write(start_offset=20)
        scene.write(start_offset=10)
        assert scene.read().start_offset == 20

    def test_uninitialized_state_is_not_read_or_written(self) -> None:
        scene = StateScene()
        with pytest.raises(InvalidRequest, match="uninitialized"):
            scene.read()
        with pytest.raises(InvalidRequest, match="uninitialized"):
            scene.write((0, 1, 2, 1))
        assert scene.machine.summary(KEY) == (0, 0, -1, -1)

    @pytest.mark.parametrize(("start_offset", "complete_count"), [(-1, -1), (0, 0), (70, 0)])
    def test_no_record_is_complete_where_the_start_offset_was_set(self, start_offset: int, complete_count: int) -> None:
        """The lag of a group whose offsets were reset is known at once."""
        scene = StateScene()
        scene.run(lambda: scene.machine.decide_initialize(KEY, 1, start_offset, now=scene.now))
        scene.elect()
        assert scene.machine.summary(KEY) == (1, 0, start_offset, complete_count)

    def test_partition_must_exist(self) -> None:
        scene = StateScene()
        for key in [("g", TOPIC_ID, 3), ("g", TOPIC_ID, -1), ("g", b"x" * 16, 0)]:
            with pytest.raises(UnknownTopicOrPartition):
                scene.initialize(key)  # type: ignore[arg-type]

    def test_invalid_batch_is_rejected(self) -> None:
        scene = StateScene()
        scene.initialize()
        with pytest.raises(InvalidRequest):
            scene.write((5, 4, 2, 1))

    def test_deleted_state_is_gone_for_a_new_coordinator(self) -> None:
        scene = StateScene()
        scene.initialize()
        scene.delete()
        scene.delete()
        scene.elect()
        with pytest.raises(InvalidRequest):
            scene.read()


class TestFencing:
    def test_read_fences_leaders_of_older_epochs(self) -> None:
        scene = StateScene()
        scene.initialize()
        scene.read(leader_epoch=3)
        scene.elect()
        with pytest.raises(FencedLeaderEpoch):
            scene.write((0, 1, 2, 1), leader_epoch=2)
        with pytest.raises(FencedLeaderEpoch):
            scene.read(leader_epoch=2)
        scene.write((0, 1, 2, 1), leader_epoch=3)

    def test_reset_state_fences_writes_with_the_old_state_epoch(self) -> None:
        scene = StateScene()
        scene.initialize()
        scene.write((0, 9, 2, 1), leader_epoch=5, start_offset=0)
        scene.initialize(state_epoch=2, start_offset=100)
        with pytest.raises(FencedStateEpoch):
            scene.write((10, 19, 2, 1), leader_epoch=5)
        with pytest.raises(FencedStateEpoch):
            scene.initialize(state_epoch=1)
        assert scene.read(leader_epoch=5) == ShareState(2, 100)
        with pytest.raises(FencedLeaderEpoch):
            scene.read(leader_epoch=4)

    def test_repeated_initialization_keeps_the_state(self) -> None:
        scene = StateScene()
        scene.initialize()
        scene.write((0, 9, 2, 1), start_offset=0)
        scene.initialize()
        assert scene.read().batches == (StateBatch(0, 9, 2, 1),)


class TestSnapshots:
    def test_snapshot_follows_after_the_configured_number_of_updates(self) -> None:
        scene = StateScene(FEW_UPDATES)
        scene.initialize()
        for number in range(5):
            scene.write((number, number, 2, 1), start_offset=0)
        assert kinds(scene) == ["snapshot", "update", "update", "snapshot", "update", "update"]
        assert scene.machine.states[KEY].snapshot_epoch == 1
        assert scene.read().batches == (StateBatch(0, 4, 2, 1),)

    def test_log_is_pruned_behind_the_oldest_snapshot(self) -> None:
        scene = StateScene(FEW_UPDATES)
        other = ("g", TOPIC_ID, 1)
        scene.initialize()
        scene.initialize(other)
        for number in range(9):
            scene.write((number, number, 2, 1), start_offset=0)
        scene.pass_time(300_000)
        assert scene.log[0][0] == 1  # the snapshot of the other partition
        for number in range(3):
            scene.write((number, number, 2, 1), key=other, start_offset=0)
        scene.pass_time(300_000)
        assert scene.log[0][0] == scene.machine.redundant_offset == 10
        scene.elect()
        assert scene.read().batches == (StateBatch(0, 8, 2, 1),)

    def test_cold_partitions_do_not_keep_a_long_log(self) -> None:
        scene = StateScene()
        cold = ("cold", TOPIC_ID, 1)
        scene.initialize(cold)
        scene.write((3, 4, 2, 1), key=cold, start_offset=3)
        scene.initialize()
        before = scene.machine.states[cold].share_state
        scene.machine.next_offset = scene.shadow.next_offset = scene.next_offset = RETAINED_RECORDS_MIN + 10
        scene.pass_time(600_001)
        assert scene.machine.states[cold].share_state == before
        assert scene.log[0][0] >= RETAINED_RECORDS_MIN
        assert kinds(scene) == ["snapshot", "snapshot"]

    def test_log_without_states_is_pruned_to_its_end(self) -> None:
        scene = StateScene()
        scene.initialize()
        scene.delete()
        scene.pass_time(300_000)
        assert scene.log == []


class TestDeletedTopics:
    def test_states_of_deleted_topics_are_deleted_in_steps(self) -> None:
        scene = StateScene()
        for number in range(KEYS_PER_STEP + 1):
            scene.initialize((f"g{number}", TOPIC_ID, 0))
        assert not scene.run(lambda: scene.machine.decide_topics_deleted({TOPIC_ID}))
        assert scene.run(lambda: scene.machine.decide_topics_deleted({TOPIC_ID}))
        assert not scene.machine.states

    def test_new_coordinator_deletes_orphans_once_the_metadata_is_complete(self) -> None:
        scene = StateScene()
        scene.initialize()
        scene.image, scene.is_complete = image_of(u=1), False
        scene.elect()
        scene.pass_time(20_000)
        assert scene.machine.states
        scene.is_complete = True
        scene.pass_time(5_000)
        assert not scene.machine.states


class StatesUnderRequests(RuleBasedStateMachine):
    """Random requests: the state of each partition is that of a simple model, across elections and pruning."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = StateScene(FEW_UPDATES)
        self.starts: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.done: dict[int, set[int]] = {}

    def key(self, partition: int) -> tuple[str, object, int]:
        return ("g", TOPIC_ID, partition)

    @rule(partition=st.integers(0, 2), start=st.integers(-1, 20))
    def initialize(self, partition: int, start: int) -> None:
        epoch = self.epochs.get(partition, 0) + 1
        self.scene.initialize(self.key(partition), epoch, start)  # type: ignore[arg-type]
        self.epochs[partition], self.starts[partition], self.done[partition] = epoch, start, set()

    @rule(partition=st.integers(0, 2), first=st.integers(0, 30), length=st.integers(0, 5), start=st.integers(-1, 25))
    def accept(self, partition: int, first: int, length: int, start: int) -> None:
        if partition in self.starts:
            self.scene.write(
                (first, first + length, 2, 1),
                key=self.key(partition),  # type: ignore[arg-type]
                state_epoch=self.epochs[partition],
                start_offset=start,
            )
            self.done[partition].update(range(first, first + length + 1))
            self.starts[partition] = max(self.starts[partition], start)

    @rule(partition=st.integers(0, 2))
    def delete(self, partition: int) -> None:
        self.scene.delete(self.key(partition))  # type: ignore[arg-type]
        self.starts.pop(partition, None)

    @rule()
    def elect(self) -> None:
        self.scene.elect()

    @rule()
    def wait(self) -> None:
        self.scene.pass_time(301_000)

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        states = self.scene.machine.states
        assert {key[2] for key in states} == self.starts.keys()
        for (_, _, partition), state in states.items():
            assert (state.state_epoch, state.start_offset) == (self.epochs[partition], self.starts[partition])
            offsets = {offset for each in state.batches for offset in range(each.first_offset, each.last_offset + 1)}
            assert offsets == {each for each in self.done[partition] if each >= state.start_offset}


TestStatesUnderRequests = StatesUnderRequests.TestCase
TestStatesUnderRequests.settings = hypothesis_settings(max_examples=40, stateful_step_count=30, deadline=None)
