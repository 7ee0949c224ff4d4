"""Time limits of decisions about large consumer groups. The bounds are far above the usual times, for busy machines."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import pytest
from consumer_scene import REQUESTER, Consumer, ConsumerScene, settle

from moldau.machines.decision import REQUESTER as WHO_ASKS
from moldau.machines.decision import Decision, Ticket
from moldau.machines.groups import Now, Record
from moldau.machines.groups.consumer.assignors import Assignor, Subscriber, assign_range, assign_uniform
from moldau.model.ids import TopicId
from moldau.wire import messages

TOPICS = [TopicId(bytes([number]) * 16) for number in range(1, 11)]
COUNTS = dict.fromkeys(TOPICS, 100)
MEMBERS = 200


def fastest_ms(assign: Assignor, subscribers: list[Subscriber]) -> float:
    """Return the best of several runs, as other processes use the machine."""
    times = []
    for _ in range(5):
        began_ns = perf_counter_ns()
        assign(subscribers, COUNTS)
        times.append(perf_counter_ns() - began_ns)
    return min(times) / 1e6


@pytest.mark.parametrize("assign", [assign_uniform, assign_range])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_200_members_share_1000_partitions_in_less_than_50_ms(assign: Assignor, is_mixed: bool) -> None:
    before = assign([Subscriber(f"m{number}", frozenset(TOPICS)) for number in range(MEMBERS - 1)], COUNTS)
    subscribers = [
        Subscriber(f"m{number}", frozenset(TOPICS[number % 5 * is_mixed :]), before.get(f"m{number}", {}))
        for number in range(MEMBERS)
    ]
    assert fastest_ms(assign, subscribers) < 50


class Unchecked(ConsumerScene):
    """A scene without the second, checking machine, which would dominate the measurement."""

    def run(self, decide: Callable[[], Decision[Record, Any]], ticket: Ticket | None = None) -> Any:  # noqa: ARG002
        decision = decide()
        for record in decision.records:
            self.machine.apply(record, 0)
        return decision.responses.get(WHO_ASKS)


@pytest.mark.proves("C5")
def test_200_members_joining_at_once_settle_in_two_heartbeat_rounds() -> None:
    scene = Unchecked()
    scene.set_topics(**{f"t{number}": 100 for number in range(10)})
    names = list(scene.image.topics)
    consumers = [Consumer(scene, f"m{number}", *names).join() for number in range(MEMBERS)]
    assert settle(*consumers) <= 2
    assert {each.count for each in consumers} == {5}
    assert scene.consumer_group().state == "Stable"


def test_keepalive_takes_less_than_10_us() -> None:
    scene = Unchecked(a=1_000)
    consumers = [Consumer(scene, f"m{number}", "a").join() for number in range(20)]
    settle(*consumers)
    machine, now = scene.machine, Now(scene.now_ms, scene.wall_ms)
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m7", member_epoch=consumers[7].epoch, rebalance_timeout_ms=-1
    )
    times = []
    for _ in range(30):
        began_ns = perf_counter_ns()
        for _ in range(200):
            machine.decide_consumer_heartbeat(request, REQUESTER, now=now, randomness=b"")
        times.append((perf_counter_ns() - began_ns) / 200)
    assert min(times) / 1e3 < 10
