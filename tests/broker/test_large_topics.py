"""Topics with many partitions: their logs are opened in slices, between which the event loop serves others."""

from itertools import pairwise

import pytest
from broker_scene import Scene, on_broker

from moldau.broker.partitions import table
from moldau.wire.messages import CreateTopicsRequest


@pytest.mark.proves("F4", part="metadata changes")
def test_logs_of_a_large_topic_are_opened_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SLICE_MS", -1.0)  # every slice ends where it can
    opened: list[int] = []

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        topic = CreateTopicsRequest.CreatableTopic(name="large", num_partitions=200, replication_factor=1)
        scene.simulation.loop.after_event = lambda _: opened.append(len(scene.node.broker.partitions.all()))
        response = await talker.ask(7, CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        scene.simulation.loop.after_event = None
        assert response.topics[0].error_code == 0

    on_broker(script)
    steps = [after - before for before, after in pairwise(opened)]
    assert opened[-1] == 200
    assert max(steps) == 1
