"""Consumer groups around faults: stalled nodes, foreign logs, requests of non-members."""

from collections.abc import Iterable, Sequence

import pytest
from consumer_scene import SESSION_TIMEOUT_MS, Consumer, ConsumerScene, Prefixes, settle

from moldau.machines.groups import Caller
from moldau.machines.groups.consumer.soft_state import STALL_GRACE_MS
from moldau.model.errors import ErrorCode
from moldau.wire import messages

REQUESTER = Caller("client", "/10.0.0.1", 1)


def stand_still(scene: ConsumerScene, ms: float) -> None:
    """Advance the clock without firing timers."""
    scene.now_ms += ms


class TestStalls:
    @pytest.mark.proves("C5", part="a silent member is evicted")
    def test_stalled_node_evicts_no_member(self) -> None:
        scene = ConsumerScene(a=2)
        one, two = Consumer(scene, "m", "a").join(), Consumer(scene, "n", "a").join()
        settle(one, two)
        stand_still(scene, 2 * SESSION_TIMEOUT_MS)
        scene.pass_time(0)
        assert sorted(scene.consumer_group().members) == ["m", "n"]
        scene.pass_time(100)
        one.beat()
        scene.pass_time(SESSION_TIMEOUT_MS - 1)
        assert list(scene.consumer_group().members) == ["m"]

    def test_short_delay_counts_as_silence(self) -> None:
        scene = ConsumerScene(a=2)
        Consumer(scene, "m", "a").join()
        stand_still(scene, SESSION_TIMEOUT_MS + 500)
        scene.pass_time(0)
        assert not scene.consumer_group().members

    @pytest.mark.proves("C5", part="a silent member is evicted")
    def test_silent_member_is_evicted_after_the_grace_period(self) -> None:
        scene = ConsumerScene(a=2)
        Consumer(scene, "m", "a").join()
        stand_still(scene, 2 * SESSION_TIMEOUT_MS)
        scene.pass_time(STALL_GRACE_MS)
        assert not scene.consumer_group().members

    def test_stalled_node_restarts_the_revocation_timeout(self) -> None:
        scene = ConsumerScene(a=2)
        one = Consumer(scene, "m", "a").join()
        Consumer(scene, "n", "a").join()
        scene.beat("m", one.epoch)  # it learns of the revocation
        stand_still(scene, 2 * SESSION_TIMEOUT_MS)
        scene.pass_time(0)
        assert "m" in scene.consumer_group().members


class TestKeepalives:
    def alive(self, scene: ConsumerScene, epoch: int, instance_id: str | None = None) -> bool:
        """Return whether a heartbeat is a keepalive that needs no decision."""
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=epoch, instance_id=instance_id, topic_partitions=None
        )
        return scene.machine.decide_keepalive(request, REQUESTER, scene.now_ms) is not None

    @pytest.mark.proves("C5", part="a silent member is evicted")
    def test_member_stays_alive_while_nothing_can_be_written(self) -> None:
        scene = ConsumerScene(a=2)
        one = Consumer(scene, "m", "a").join()
        scene.add_topics(a=4)
        for _ in range(5):
            scene.pass_time(SESSION_TIMEOUT_MS - 1)
            assert not self.alive(scene, one.epoch)
        assert "m" in scene.consumer_group().members

    def test_only_its_own_heartbeat_extends_the_session(self) -> None:
        scene = ConsumerScene(a=2)
        one = Consumer(scene, "m", "a", instance_id="one").join()
        scene.pass_time(SESSION_TIMEOUT_MS - 1)
        assert not self.alive(scene, one.epoch, instance_id="other")
        assert not self.alive(scene, one.epoch + 1)
        scene.pass_time(1)
        assert "m" not in scene.consumer_group().members

    def test_unsubscribed_topics_do_not_affect_keepalives(self) -> None:
        scene = ConsumerScene(a=2)
        one = Consumer(scene, "m", "a").join()
        settle(one)
        scene.add_topics(other=1)
        assert self.alive(scene, one.epoch)
        scene.add_topics(a=3)
        assert not self.alive(scene, one.epoch)
        scene.drop_topic("a")
        assert not self.alive(scene, one.epoch)


class OlderMatcher(Prefixes):
    """Supports fewer patterns than the previous broker."""

    def matching(self, pattern: str, names: Iterable[str]) -> Sequence[str]:
        if pattern.endswith("*"):
            raise ValueError("a star at the end")
        return super().matching(pattern, names)


class TestUnreadablePatterns:
    @pytest.mark.proves("C2", part="the server-side protocol")
    def test_unsupported_pattern_keeps_its_previous_matches(self) -> None:
        scene = ConsumerScene(logs_a=1, logs_b=1)
        consumer = Consumer(scene, "m", subscribed_topic_names=None, subscribed_topic_regex="logs*").join()
        settle(consumer)
        scene.elect()
        for machine in (scene.machine, scene.shadow):
            machine._consumer._matcher = OlderMatcher()
        scene.add_topics(logs_c=1)
        scene.pass_time(10_000)
        assert scene.beat("m", consumer.epoch).error_code == ErrorCode.NONE
        assert scene.consumer_group().resolved["logs*"].topics == {"logs_a", "logs_b"}
        scene.drop_topic("logs_b")
        scene.pass_time(10_000)
        consumer.beat()
        assert consumer.owned == {"logs_a": [0]}


@pytest.mark.proves("C2", part="the server-side protocol")
def test_sync_of_a_non_member_leaves_no_state() -> None:
    scene = ConsumerScene(a=2)
    one = Consumer(scene, "m", "a").join()
    scene.beat("m", -1)
    assert not scene.consumer_group().members
    assert scene.error(scene.send_sync("m", one.epoch)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.machine._consumer._soft_states == {}
