"""FindCoordinator, as long as there is no coordinator."""

import pytest
from broker_scene import Scene, on_broker

from moldau.model.errors import ErrorCode
from moldau.wire.messages import FindCoordinatorRequest


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(
    ("key_type", "code"),
    [
        (0, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (9, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_is_told_to_ask_again_later(version: int, key_type: int, code: ErrorCode) -> None:
    if version == 0 and key_type:
        pytest.skip("version 0 knows groups only")

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        answer = await talker.ask(
            version, FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g", "h"])
        )
        rows = answer.coordinators if version >= 4 else [answer]
        assert [row.error_code for row in rows] == [code] * len(rows)
        assert [row.node_id for row in rows] == [-1] * len(rows)

    on_broker(script)
