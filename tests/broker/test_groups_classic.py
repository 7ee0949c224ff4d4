"""Classic groups through the wire: members join, share the partitions, live, leave, and hear what they must know."""

import pytest
from broker_scene import Scene, on_broker
from group_members import TOPIC, find_coordinator, members, settle

from moldau.model.errors import ErrorCode


@pytest.mark.proves("C2")
def test_members_that_join_together_share_every_partition_once() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=7)
        everybody = await members(scene, 3)
        await find_coordinator(everybody[0].talker)
        await settle(everybody, partitions=7)
        assert {member.generation for member in everybody} == {1}
        owned = [index for member in everybody for index in member.partitions[TOPIC]]
        assert sorted(owned) == list(range(7))
        assert [await member.heartbeat() for member in everybody] == [ErrorCode.NONE] * 3

    on_broker(script)
