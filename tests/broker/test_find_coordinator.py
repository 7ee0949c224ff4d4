"""FindCoordinator for unsupported coordinator types and many keys."""

import pytest
from broker_scene import Scene, on_broker

from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import ErrorCode
from moldau.wire.messages import FindCoordinatorRequest


@pytest.mark.parametrize("version", range(1, 7))
def test_unsupported_coordinator_type_is_rejected(version: int) -> None:
    code = ErrorCode.INVALID_REQUEST

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        request = FindCoordinatorRequest(key="g", key_type=9, coordinator_keys=["g", "h"])
        response = await talker.ask(version, request)
        rows = response.coordinators if version >= 4 else [response]
        assert [row.error_code for row in rows] == [code] * len(rows)
        assert [row.node_id for row in rows] == [-1] * len(rows)

    on_broker(script)


def test_many_keys_are_resolved_in_several_time_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"group-{number}" for number in range(10_000)]
    turns = 0
    yield_to_requests = TimeSlice.next

    async def counted(turn: TimeSlice) -> None:
        nonlocal turns
        turns += 1
        await yield_to_requests(turn)

    monkeypatch.setattr(TimeSlice, "next", counted)

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        response = await talker.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=keys))
        assert [each.key for each in response.coordinators] == keys
        assert turns >= 4

    on_broker(script)
