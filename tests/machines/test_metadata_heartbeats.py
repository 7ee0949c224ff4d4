"""Broker heartbeats: unfencing, fencing, controlled shutdown."""

import pytest
from metadata_scene import Scene

from moldau.machines.decision import SetTimer
from moldau.machines.metadata import BrokerHeartbeat, HeartbeatResult, NewTopic
from moldau.machines.metadata.image import PartitionImage
from moldau.machines.metadata.sessions import SessionEnded
from moldau.model.errors import StaleBrokerEpoch

SESSION_MS = 9_000.0


def partition(scene: Scene, index: int = 0) -> PartitionImage:
    found = scene.machine.image.partition("t", index)
    assert found is not None
    return found


def beat(
    scene: Scene, broker_id: int, now_ms: float = 0.0, *, offset: int = 10**6, fence: bool = False, stop: bool = False
) -> HeartbeatResult:
    epoch = scene.machine.image.brokers[broker_id].epoch
    heartbeat = BrokerHeartbeat(broker_id, epoch, offset, wants_fence=fence, wants_shut_down=stop)
    return scene.run(scene.machine.decide_broker_heartbeat(heartbeat, now_ms))


@pytest.mark.proves("H3")
def test_broker_is_unfenced_once_it_has_caught_up_with_its_registration() -> None:
    scene = Scene(brokers=0)
    epoch = scene.register(1)
    assert beat(scene, 1, offset=epoch - 1) == (False, True, False)
    assert beat(scene, 1, offset=epoch, fence=True) == (True, True, False)
    assert not scene.machine.image.is_active(1)
    assert beat(scene, 1, offset=epoch) == (True, False, False)
    assert scene.machine.image.is_active(1)
    assert beat(scene, 1, fence=True) == (True, True, False)
    assert not scene.machine.image.is_active(1)


def test_heartbeat_with_stale_broker_epoch_is_rejected() -> None:
    scene = Scene()
    with pytest.raises(StaleBrokerEpoch):
        scene.machine.decide_broker_heartbeat(BrokerHeartbeat(1, 0, 99), 0.0)
    with pytest.raises(StaleBrokerEpoch):
        scene.machine.decide_broker_heartbeat(BrokerHeartbeat(7, 0, 99), 0.0)


@pytest.mark.proves("H3")
def test_silent_broker_is_fenced_at_its_session_timeout() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])]))
    beat(scene, 1, 0.0)
    beat(scene, 2, 0.0)
    beat(scene, 2, 5_000.0)
    assert scene.time_out(SessionEnded(1), SESSION_MS) == []
    assert not scene.machine.image.is_active(1)
    assert (partition(scene).leader, partition(scene).isr) == (2, (2,))
    assert scene.time_out(SessionEnded(2), SESSION_MS) == [SetTimer(SessionEnded(2), 5_000.0)]
    assert scene.machine.image.is_active(2)
    assert beat(scene, 1, 9_500.0) == (True, False, False)  # alive after all


def test_keepalive_writes_nothing_and_sets_no_timer() -> None:
    scene = Scene()
    epoch = scene.machine.image.brokers[1].epoch
    first = scene.machine.decide_broker_heartbeat(BrokerHeartbeat(1, epoch, 99), 0.0)
    assert first.timers == [SetTimer(SessionEnded(1), SESSION_MS)]
    later = scene.machine.decide_broker_heartbeat(BrokerHeartbeat(1, epoch, 99), 2_000.0)
    assert (later.records, later.timers) == ((), [])


@pytest.mark.proves("H3")
def test_only_broker_is_not_fenced_for_silence() -> None:
    scene = Scene()
    beat(scene, 1, 0.0)
    assert scene.time_out(SessionEnded(1), SESSION_MS) == [SetTimer(SessionEnded(1), SESSION_MS)]
    assert scene.machine.image.is_active(1)
    scene.add_broker(2)  # from now on heartbeats are required
    assert scene.time_out(SessionEnded(1), 2 * SESSION_MS) == [SetTimer(SessionEnded(1), SESSION_MS)]
    assert scene.machine.image.is_active(1)
    assert scene.time_out(SessionEnded(1), 3 * SESSION_MS) == []
    assert not scene.machine.image.is_active(1)


@pytest.mark.proves("H3")
def test_stalled_controller_processes_heartbeats_before_fencing() -> None:
    scene = Scene(brokers=2)
    beat(scene, 1, 0.0)
    beat(scene, 2, 0.0)
    for broker_id in (1, 2):
        assert scene.time_out(SessionEnded(broker_id), 60_000.0) == [SetTimer(SessionEnded(broker_id), 1_000.0)]
        assert scene.machine.image.is_active(broker_id)
    beat(scene, 1, 60_000.0)  # was sent long ago, and not read
    assert scene.time_out(SessionEnded(1), 61_000.0) == [SetTimer(SessionEnded(1), 8_000.0)]
    assert scene.time_out(SessionEnded(2), 70_000.0) == []  # late again, but it had its chance
    assert (scene.machine.image.is_active(1), scene.machine.image.is_active(2)) == (True, False)


@pytest.mark.proves("H3")
def test_new_controller_grants_every_broker_a_full_session() -> None:
    scene = Scene(brokers=2)
    beat(scene, 2, fence=True)
    elected = scene.machine.decide_elected(50_000.0)
    assert elected.timers[0] == SetTimer(SessionEnded(1), SESSION_MS)
    assert scene.time_out(SessionEnded(1), 50_000.0 + SESSION_MS - 1) == [SetTimer(SessionEnded(1), 1.0)]
    scene.time_out(SessionEnded(1), 50_000.0 + SESSION_MS)
    assert not scene.machine.image.is_active(1)


def test_single_node_needs_no_heartbeats() -> None:
    scene = Scene()
    scene.machine.decide_elected(0.0)
    epoch = scene.register(1, b"j" * 16)
    scene.run(scene.machine.decide_unfence_broker(1, epoch))
    assert scene.time_out(SessionEnded(1), SESSION_MS) == []
    assert scene.machine.image.is_active(1)


def test_controlled_shutdown_moves_leaderships_and_is_then_allowed() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2]), (1, [2, 1])]))
    assert beat(scene, 1, stop=True) == (True, True, True)
    assert [(partition(scene, index).leader, partition(scene, index).isr) for index in (0, 1)] == [(2, (2,))] * 2
    broker = scene.machine.image.brokers[1]
    assert (broker.is_fenced, broker.is_shutting_down) == (True, True)
    assert beat(scene, 1, stop=True) == (True, True, True)
    epoch = scene.register(1, b"j" * 16, folder=b"f" * 16)  # in another folder, at once: it announced its shutdown
    assert epoch > broker.epoch
    assert not scene.machine.image.brokers[1].is_shutting_down


def test_broker_with_offline_log_dir_leads_only_what_no_other_can() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2]), (1, [2, 1])]))
    scene.create_one(NewTopic("alone", assignments=[(0, [1])]))
    assert report_log_dirs(scene, 1, is_offline=True) == (True, False, False)
    assert [(partition(scene, index).leader, partition(scene, index).isr) for index in (0, 1)] == [(2, (2,))] * 2
    alone = scene.machine.image.topics["alone"].partitions[0]
    assert (alone.leader, alone.isr) == (1, (1,))
    broker = scene.machine.image.brokers[1]
    assert (broker.is_active, broker.is_fenced, broker.has_only_offline_dirs) == (False, False, True)
    assert report_log_dirs(scene, 1, is_offline=True) == (True, False, False)  # changes nothing more
    assert report_log_dirs(scene, 1, is_offline=False) == (True, False, False)
    assert scene.machine.image.brokers[1].is_active
    assert partition(scene, 0).leader == 2  # it must catch up first


def test_offline_log_dir_never_causes_an_unclean_election() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])], configs=(("unclean.leader.election.enable", "true"),)))
    beat(scene, 2, fence=True)
    beat(scene, 2)
    assert partition(scene).isr == (1,)
    report_log_dirs(scene, 1, is_offline=True)
    assert (partition(scene).leader, partition(scene).isr) == (1, (1,))


def report_log_dirs(scene: Scene, broker_id: int, *, is_offline: bool) -> HeartbeatResult:
    broker = scene.machine.image.brokers[broker_id]
    offline = (broker.directories[-1],) if is_offline else ()
    heartbeat = BrokerHeartbeat(broker_id, broker.epoch, 10**6, offline_directories=offline)
    return scene.run(scene.machine.decide_broker_heartbeat(heartbeat, 0.0))
