"""The cost of the controller's decisions: the controller handles one at a time."""

import sys
from collections.abc import Callable
from types import FrameType

from metadata_scene import Scene

from moldau.machines.metadata import BrokerHeartbeat, NewTopic

PARTITIONS = 900
CALLS_PER_CHANGE_MAX = 64


def calls(act: Callable[[], object]) -> int:
    """Return the number of Python function calls: the same on any machine."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001 - Python's signature
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def scene_with(partitions: int) -> Scene:
    """Brokers 1 to 3 have all partitions, broker 4 has two."""
    scene = Scene(brokers=4)
    spread = [(index, [1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3]) for index in range(partitions)]
    scene.create_one(NewTopic("t", assignments=spread))
    scene.create_one(NewTopic("few", assignments=[(0, [4, 1]), (1, [4, 2])]))
    assert scene.machine.image.topics
    return scene


def test_departing_broker_costs_only_its_own_partitions() -> None:
    scene = scene_with(PARTITIONS)
    epochs = {each: broker.epoch for each, broker in scene.machine.image.brokers.items()}
    few = calls(lambda: scene.machine.decide_fence_broker(4, epochs[4]))
    many = calls(lambda: scene.machine.decide_fence_broker(1, epochs[1]))
    assert few < 4 * CALLS_PER_CHANGE_MAX
    assert many < PARTITIONS * CALLS_PER_CHANGE_MAX


def test_heartbeat_cost_is_independent_of_the_cluster_size() -> None:
    def cost(partitions: int) -> int:
        scene = scene_with(partitions)
        heartbeat = BrokerHeartbeat(1, scene.machine.image.brokers[1].epoch, 10**6)
        scene.machine.decide_broker_heartbeat(heartbeat, 0.0)
        return calls(lambda: scene.machine.decide_broker_heartbeat(heartbeat, 1.0))

    assert cost(PARTITIONS) == cost(10) < 20


def test_returning_broker_costs_only_its_waiting_partitions() -> None:
    scene = scene_with(PARTITIONS)
    epoch = scene.machine.image.brokers[1].epoch
    scene.run(scene.machine.decide_fence_broker(1, epoch))
    assert not scene.machine.image.is_active(1)
    assert calls(lambda: scene.machine.decide_unfence_broker(1, epoch)) < 100
