"""Expiration of offsets and groups: by time (KIP-211), or with their topic."""

import pytest
from groups_scene import Scene, deleted_topic, subscription

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.offset_cleanup import CleanupContinued
from moldau.model.units import DAY_MS, MINUTE_MS

RETENTION_MS = 7 * DAY_MS
CHECK_MS = 10 * MINUTE_MS
LONG_MS = 30 * MINUTE_MS


def live(scene: Scene, member_id: str, for_ms: float) -> None:
    """Let time pass while a member sends heartbeats."""
    end_ms = scene.now_ms + for_ms
    while scene.now_ms < end_ms:
        scene.pass_time(min(LONG_MS / 2, end_ms - scene.now_ms))
        assert scene.heartbeat(member_id, 1) == 0


def test_offsets_without_group_expire_after_the_last_commit() -> None:
    scene = Scene()
    scene.commit(5)
    scene.pass_time(RETENTION_MS - 2 * CHECK_MS)
    scene.commit(6, partition=1)
    scene.pass_time(3 * CHECK_MS)
    assert scene.committed(partition=0) is None
    assert scene.committed(partition=1) == 6
    scene.pass_time(RETENTION_MS)
    assert scene.machine.group("g") is None
    assert not scene.machine.state.offsets


def test_offsets_are_retained_after_the_group_becomes_empty() -> None:
    scene = Scene()
    (member_id,) = scene.settle(session_ms=LONG_MS, protocols=[("range", subscription("t"))])
    scene.commit(5, member_id=member_id, generation=1)
    live(scene, member_id, 2 * RETENTION_MS)
    assert scene.committed() == 5
    scene.leave((member_id, None))
    scene.pass_time(RETENTION_MS - CHECK_MS)
    assert scene.committed() == 5
    scene.pass_time(2 * CHECK_MS)
    assert scene.machine.group("g") is None
    assert not scene.machine.state.classic


def test_empty_group_without_offsets_is_removed_soon() -> None:
    scene = Scene()
    (member_id,) = scene.settle()
    scene.leave((member_id, None))
    scene.pass_time(CHECK_MS)
    assert scene.machine.group("g") is None


def test_group_with_a_pending_member_is_not_removed() -> None:
    scene = Scene()
    (member_id,) = scene.settle()
    scene.leave((member_id, None))
    scene.pass_time(CHECK_MS - 10_000)
    scene.new_id(session_ms=20_000)
    scene.pass_time(10_000)
    assert "g" in scene.machine.state.classic


@pytest.mark.proves("C3")
def test_stable_group_expires_offsets_of_unsubscribed_topics() -> None:
    scene = Scene()
    (member_id,) = scene.settle(session_ms=LONG_MS, protocols=[("range", subscription("read"))])
    scene.commit(1, topic="read", member_id=member_id, generation=1)
    scene.commit(2, topic="left", member_id=member_id, generation=1)
    live(scene, member_id, RETENTION_MS + CHECK_MS)
    assert (scene.committed("read"), scene.committed("left")) == (1, None)


@pytest.mark.proves("C3")
@pytest.mark.parametrize(
    "options", [{"protocol_type": "connect"}, {"protocols": [("range", b"not a subscription")]}], ids=["type", "words"]
)
def test_group_with_unknown_subscriptions_keeps_its_offsets(options: dict[str, object]) -> None:
    scene = Scene()
    (member_id,) = scene.settle(session_ms=LONG_MS, **options)
    scene.commit(1, member_id=member_id, generation=1)
    live(scene, member_id, RETENTION_MS + CHECK_MS)
    assert scene.committed() == 1


def test_old_commit_version_may_set_its_retention() -> None:
    scene = Scene()
    scene.commit(5, retention_ms=CHECK_MS // 2)
    scene.commit(6, retention_ms=2 * RETENTION_MS, partition=1)
    value = scene.machine.state.offset("g", "t", 0)
    assert value is not None
    assert (value.expire_timestamp, value.leader_epoch) == (scene.wall_ms + CHECK_MS // 2, -1)
    scene.pass_time(CHECK_MS)
    assert scene.committed(partition=0) is None
    scene.pass_time(RETENTION_MS + CHECK_MS)
    assert scene.committed(partition=1) == 6


def test_retention_and_check_interval_are_settings() -> None:
    scene = Scene(GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000))
    scene.commit(5)
    scene.pass_time(59_000)
    assert scene.committed() == 5
    scene.pass_time(2_000)
    assert scene.committed() is None


def test_offsets_expire_after_a_failover() -> None:
    scene = Scene()
    scene.commit(5)
    scene.pass_time(RETENTION_MS)
    scene.elect()
    scene.pass_time(CHECK_MS)
    assert scene.committed() is None


def test_wall_clock_may_be_set_at_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.commit(5)
    monkeypatch.setattr("groups_scene.WALL_AHEAD_MS", 1_700_000_000_000 + RETENTION_MS)
    scene.commit(6, group_id="other")  # a request carries the time
    scene.pass_time(CHECK_MS)
    assert (scene.committed(), scene.committed(group_id="other")) == (None, 6)


class TestManyOffsets:
    def test_offsets_expiring_at_once_are_removed_in_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("moldau.machines.groups.offset_cleanup.OFFSETS_PER_CLEANUP_STEP", 3)
        scene = Scene()
        for number in range(20):
            scene.commit(number, partition=number % 10, group_id=f"g{number // 10}")
        scene.pass_time(RETENTION_MS + CHECK_MS)
        assert not scene.machine.state.offsets
        assert scene.records_most <= 5  # the offsets of a slice, and a few group tombstones
        assert CleanupContinued() not in scene.timers

    def test_unexpired_offsets_are_checked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("moldau.machines.groups.offset_cleanup.OFFSETS_PER_CLEANUP_STEP", 3)
        scene = Scene()
        for number in range(20):
            scene.commit(number, partition=number % 10, group_id=f"g{number // 10}")
        scene.pass_time(CHECK_MS)
        assert CleanupContinued() not in scene.timers
        assert len(scene.log) == 20


class TestTopicDeletion:
    def delete(self, scene: Scene, *topics: str) -> None:
        deleted = [deleted_topic(scene, each) for each in topics]
        while not scene.run(lambda: scene.machine.decide_topics_deleted(deleted, now=scene.now)):
            pass

    def test_topic_deletion_removes_its_offsets_in_every_group(self) -> None:
        scene = Scene()
        scene.settle(protocols=[("range", subscription("t"))])
        for group_id in ("g", "h"):
            scene.commit(1, topic="kept", group_id=group_id, member_id=next(iter(scene.group().members)), generation=1)
        scene.commit(1, topic="kept", group_id="h")
        scene.commit(2, topic="t", group_id="h")
        scene.commit(2, topic="t", partition=1, group_id="i")
        self.delete(scene, "t", "u")
        assert scene.machine.state.offset("h", "kept", 0)
        assert not any("t" in topics for topics in scene.machine.state.offsets.values())
        assert scene.machine.group("i") is None

    def test_topic_with_many_offsets_is_removed_in_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("moldau.machines.groups.offset_cleanup.OFFSETS_PER_CLEANUP_STEP", 3)
        scene = Scene()
        for partition in range(10):
            scene.commit(1, partition=partition)
        topics = [deleted_topic(scene, "t")]
        assert not scene.run(lambda: scene.machine.decide_topics_deleted(topics, now=scene.now))
        assert sum(map(len, scene.machine.state.offsets["g"].values())) == 7
        scene.now_ms += 1
        scene.commit(9, partition=20, topic="t")  # of a recreated topic, as it is later
        responses = [scene.run(lambda: scene.machine.decide_topics_deleted(topics, now=scene.now)) for _ in range(3)]
        assert responses == [False, False, True]
        assert [*scene.machine.state.offsets["g"]["t"]] == [20]

    def test_topic_without_offsets_changes_nothing(self) -> None:
        scene = Scene()
        scene.commit(1)
        self.delete(scene, "other")
        assert scene.committed() == 1
        assert CleanupContinued() not in scene.timers
