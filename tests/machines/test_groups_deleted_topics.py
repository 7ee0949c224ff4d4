"""Offsets of deleted topics: not returned, and removed, without affecting recreated topics."""

import pytest
from consumer_scene import ConsumerScene
from groups_scene import WALL_AHEAD_MS

from moldau.machines.groups import GroupsMachine, record_version
from moldau.machines.groups.deleted_topics import DeletedTopic
from moldau.machines.groups.offset_cleanup import FIRST_STEP_DELAY_MS, CleanupContinued
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.model.units import MINUTE_MS
from moldau.wire import messages
from moldau.wire.data_records import decode_group_record

FetchGroup = messages.OffsetFetchRequest.OffsetFetchRequestGroup
FetchTopic = messages.OffsetFetchRequest.OffsetFetchRequestTopics
CHECK_MS = 10 * MINUTE_MS
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT

pytestmark = pytest.mark.proves("C3", part="committed offsets are returned")


class TopicsScene(ConsumerScene):
    """A shard with a metadata image; commits are for the current topic of the name."""

    knows_all = True

    def _replayed(self) -> GroupsMachine:
        machine = GroupsMachine(
            self.settings, wall_offset_ms=WALL_AHEAD_MS, image=lambda: self.image, newest_image=self._newest_image
        )
        for offset, (key, value) in enumerate(self.log):
            machine.apply(decode_group_record(key, value), offset)
        return machine

    def _newest_image(self) -> MetadataImage | None:
        return self.image if self.knows_all else None

    def commit_for(self, offset: int, topic: str = "a", partition: int = 0, group_id: str = "g") -> None:
        options = {"topic": topic, "topic_id": self.id_of(topic), "partition": partition, "group_id": group_id}
        assert self.commit(offset, **options) is ErrorCode.NONE  # type: ignore[arg-type]

    def replace(self, name: str = "a") -> DeletedTopic:
        """Recreate a topic; return the deleted one."""
        was = self.id_of(name)
        self.drop_topic(name)
        self.add_topics(**{name: 2})
        assert self.id_of(name) != was
        return DeletedTopic(was, name, self.wall_ms)

    def notify(self, *topics: DeletedTopic) -> None:
        while not self.run(lambda: self.machine.decide_topics_deleted(topics, now=self.now)):
            pass

    def elect_again(self) -> None:
        """As if the log had just been loaded, including pending offsets, which this log does not hold."""
        self.run(lambda: self.machine.decide_elected(self.now_ms))
        self.pass_time(FIRST_STEP_DELAY_MS)

    def fetched(
        self, *indexes: int, topic: str = "a", topic_id: TopicId = NO_TOPIC_ID, require_stable: bool = False
    ) -> list[int]:
        """Return the offsets, or the error codes."""
        topics = [FetchTopic(name=topic, topic_id=topic_id, partition_indexes=indexes)]
        response = self.machine.fetch_offsets(FetchGroup(group_id="g", topics=topics), require_stable=require_stable)
        return [each.error_code or each.committed_offset for each in response.topics[0].partitions]

    def all_fetched(self) -> dict[str, list[int]]:
        response = self.machine.fetch_offsets(FetchGroup(group_id="g", topics=None))
        return {topic.name: [each.committed_offset for each in topic.partitions] for topic in response.topics}


class TestFetching:
    def test_offset_of_an_earlier_topic_with_the_name_is_not_returned(self) -> None:
        scene = TopicsScene(a=2, b=1)
        scene.commit_for(5)
        scene.commit_for(7, "b")
        assert scene.fetched(0, 1) == [5, -1]
        scene.replace("a")
        assert scene.fetched(0, 1) == [-1, -1]
        assert scene.all_fetched() == {"b": [7]}
        assert [*scene.machine.committed()] == [("g", "b", 0, 7)]
        scene.commit_for(6, partition=1)
        assert scene.fetched(0, 1) == [-1, 6]
        assert scene.all_fetched() == {"a": [6], "b": [7]}
        assert [*scene.machine.committed()] == [("g", "a", 1, 6), ("g", "b", 0, 7)]

    def test_offset_of_a_deleted_topic_is_not_returned(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_for(5)
        scene.drop_topic("a")
        assert scene.fetched(0) == [-1]
        assert scene.all_fetched() == {}

    def test_fetch_by_topic_id_ignores_a_recreated_topic(self) -> None:
        scene = TopicsScene(a=1)
        was = scene.id_of("a")
        scene.replace("a")
        scene.commit_for(5)
        assert scene.fetched(0, topic_id=was) == [-1]
        assert scene.fetched(0, topic_id=scene.id_of("a")) == [5]

    def test_offset_without_topic_id_is_returned(self) -> None:
        """As older versions wrote them, and those with an expire timestamp."""
        scene = TopicsScene(a=1)
        scene.commit(5, topic="a")
        scene.commit(6, topic="a", topic_id=scene.id_of("a"), partition=1, retention_ms=MINUTE_MS)
        value = scene.machine.state.offset("g", "a", 1)
        assert value is not None
        assert (value.topic_id, record_version(value)) == (NO_TOPIC_ID, 1)
        assert scene.fetched(0, 1) == [5, 6]

    def test_incomplete_image_hides_no_offsets(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_for(5)
        scene.drop_topic("a")
        scene.knows_all = False
        assert scene.fetched(0) == [5]
        assert scene.all_fetched() == {"a": [5]}


class TestDeletion:
    @pytest.mark.parametrize("clock_ms", [-5_000, 0, 5_000])
    def test_offsets_are_removed_by_topic_id_whatever_the_clock(self, clock_ms: int) -> None:
        scene = TopicsScene(a=2)
        scene.commit_for(5, partition=0)
        gone = scene.replace("a")
        scene.commit_for(6, partition=1)
        scene.notify(gone._replace(until_ms=gone.until_ms + clock_ms))
        assert (scene.committed("a", 0), scene.committed("a", 1)) == (None, 6)

    def test_deletion_keeps_heartbeats_valid(self) -> None:
        scene = TopicsScene(a=2)
        first = scene.replace("a")
        scene.commit_for(5)
        second = scene.replace("a")
        scene.commit_for(6)
        for _ in range(2):
            scene.notify(first, second)
        assert scene.committed("a") == 6

    def test_pending_offsets_of_the_recreated_topic_are_kept(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_for(5)
        gone = scene.replace("a")
        scene.commit_in_transaction(6, topic="a")
        scene.notify(gone)
        scene.elect_again()
        scene.end_transaction()
        assert scene.fetched(0) == [6]

    def test_pending_offsets_of_the_deleted_topic_are_removed(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_in_transaction(6, topic="a")
        scene.notify(scene.replace("a"))
        assert not scene.machine.state.pending


class TestTransactions:
    def test_pending_offset_of_deleted_topic_does_not_block(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_in_transaction(6, topic="a")
        assert scene.fetched(0, require_stable=True) == [UNSTABLE]
        scene.replace("a")
        assert scene.fetched(0, require_stable=True) == [-1]
        scene.commit_in_transaction(7, topic="a", producer_id=2)
        assert scene.fetched(0, require_stable=True) == [UNSTABLE]
        scene.end_transaction(2)
        assert scene.fetched(0, require_stable=True) == [7]

    @pytest.mark.proves("P3")
    def test_committed_offset_has_its_topic_id(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_in_transaction(6, topic="a")
        scene.end_transaction()
        assert scene.fetched(0) == [6]
        scene.replace("a")
        assert scene.fetched(0) == [-1]

    @pytest.mark.proves("P3")
    def test_offset_of_a_topic_deleted_before_the_commit_is_dropped(self) -> None:
        scene = TopicsScene(a=1)
        scene.drop_topic("a")
        assert scene.commit_in_transaction(6, topic="a") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not scene.machine.state.pending


class TestElections:
    def test_only_offsets_of_deleted_topics_are_removed_after_loading(self) -> None:
        scene = TopicsScene(a=1, b=1, c=1)
        for topic in "abc":
            scene.commit_for(5, topic)
            scene.commit(6, topic=topic, partition=1)  # as an older version wrote it
        scene.replace("a")
        scene.commit_for(7, "a", 2)
        scene.drop_topic("b")
        scene.elect()
        scene.pass_time(FIRST_STEP_DELAY_MS)
        kept = {topic: {*partitions} for topic, partitions in scene.machine.state.offsets["g"].items()}
        assert kept == {"a": {1, 2}, "c": {0, 1}}
        assert CleanupContinued() not in scene.timers

    def test_pending_offsets_of_deleted_topics_are_removed_after_loading(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_in_transaction(6, topic="a")
        scene.replace("a")
        scene.elect_again()
        assert not scene.machine.state.pending

    def test_nothing_is_removed_before_the_image_is_complete(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_for(5)
        image, scene.image = scene.image, MetadataImage(offset=0)  # from before the topic was created
        scene.knows_all = False
        scene.elect()
        scene.pass_time(2 * CHECK_MS)
        assert scene.committed("a") == 5
        scene.image, scene.knows_all = image, True
        scene.run(lambda: scene.machine.decide_metadata_loaded(now=scene.now))
        scene.pass_time(0)
        assert scene.committed("a") == 5
        scene.drop_topic("a")
        scene.elect()
        scene.pass_time(FIRST_STEP_DELAY_MS)
        assert scene.committed("a") is None

    def test_loaded_offsets_are_checked_once_the_image_is_complete(self) -> None:
        scene = TopicsScene(a=1)
        scene.commit_for(5)
        scene.replace("a")
        scene.knows_all = False
        scene.elect()
        assert CleanupContinued() not in scene.timers
        scene.knows_all = True
        scene.run(lambda: scene.machine.decide_metadata_loaded(now=scene.now))
        scene.pass_time(0)
        assert scene.committed("a") is None

    def test_many_offsets_are_removed_in_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("moldau.machines.groups.offset_cleanup.OFFSETS_PER_CLEANUP_STEP", 3)
        scene = TopicsScene(a=10, b=10)
        for number in range(40):
            scene.commit_for(number, "ab"[number % 2], number // 2 % 10, f"g{number // 20}")
        scene.replace("a")
        scene.records_most = 0
        scene.elect()
        scene.pass_time(FIRST_STEP_DELAY_MS)
        assert {(*topics,) for topics in scene.machine.state.offsets.values()} == {("b",)}
        assert scene.records_most == 3
        assert CleanupContinued() not in scene.timers

    def test_left_over_offsets_are_removed_by_a_later_check(self) -> None:
        """For instance an offset with a pending one for the recreated topic, which was aborted."""
        scene = TopicsScene(a=1)
        scene.commit_for(5)
        gone = scene.replace("a")
        scene.commit_in_transaction(6, topic="a")
        scene.notify(gone)
        scene.end_transaction(is_commit=False)
        assert scene.committed("a") == 5
        scene.pass_time(CHECK_MS)
        assert scene.committed("a") is None
