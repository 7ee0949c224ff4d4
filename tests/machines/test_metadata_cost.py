"""What the controller's work costs, by how much it looks at: everybody waits while it decides."""

import sys
from collections.abc import Callable
from types import FrameType

from metadata_scene import Scene

from moldau.machines.metadata import BrokerHeartbeat, NewTopic

PARTITIONS = 900
CALLS_PER_CHANGE_MAX = 60


def calls(act: Callable[[], object]) -> int:
    """How many functions of Python are called: the same on any machine."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001 - as Python asks for it
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def scene_with(partitions: int) -> Scene:
    """Brokers 1 to 3 hold all of them, broker 4 two."""
    scene = Scene(brokers=4)
    spread = [(index, [1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3]) for index in range(partitions)]
    scene.create_one(NewTopic("t", assignments=spread))
    scene.create_one(NewTopic("few", assignments=[(0, [4, 1]), (1, [4, 2])]))
    assert scene.machine.image.topics
    return scene


def test_a_broker_that_leaves_costs_what_it_holds_and_no_more() -> None:
    scene = scene_with(PARTITIONS)
    epochs = {each: broker.epoch for each, broker in scene.machine.image.brokers.items()}
    few = calls(lambda: scene.machine.decide_fence_broker(4, epochs[4]))
    many = calls(lambda: scene.machine.decide_fence_broker(1, epochs[1]))
    assert few < 4 * CALLS_PER_CHANGE_MAX
    assert many < PARTITIONS * CALLS_PER_CHANGE_MAX


def test_a_heartbeat_costs_the_same_however_large_the_cluster() -> None:
    def cost(partitions: int) -> int:
        scene = scene_with(partitions)
        heartbeat = BrokerHeartbeat(1, scene.machine.image.brokers[1].epoch, 10**6)
        scene.machine.decide_broker_heartbeat(heartbeat, 0.0)
        return calls(lambda: scene.machine.decide_broker_heartbeat(heartbeat, 1.0))

    assert cost(PARTITIONS) == cost(10) < 20


def test_a_broker_that_comes_back_costs_what_waits_for_it() -> None:
    scene = scene_with(PARTITIONS)
    epoch = scene.machine.image.brokers[1].epoch
    scene.run(scene.machine.decide_fence_broker(1, epoch))
    assert not scene.machine.image.is_active(1)
    assert calls(lambda: scene.machine.decide_unfence_broker(1, epoch)) < 100
