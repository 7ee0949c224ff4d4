"""Three controllers keep one metadata log: they elect, replicate, fail over, heal; what was answered is never lost."""

import pytest
from quorum_scene import Quorum, on_quorum


@pytest.mark.parametrize("is_static", [False, True], ids=["voters in the log", "voters in the settings"])
def test_three_controllers_elect_one_and_all_see_what_it_commits(is_static: bool) -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        await quorum.write(1)
        assert await quorum.seen_by_all(1) < 0.1
        for node_id in quorum.nodes:
            metadata = quorum.metadata(node_id)
            assert metadata.leader_id == leader
            assert metadata.is_active is (node_id == leader)
            assert metadata.controller_address is not None
            assert metadata.controller_address.host == f"n{leader}"

    on_quorum(script, is_static=is_static)
