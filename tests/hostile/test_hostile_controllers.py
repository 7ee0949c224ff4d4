"""Hostile frames on a controller listener: each gets a response or ends its connection."""

import asyncio

import pytest
from broker_scene import CONTROLLER, FRAME_BYTES_MAX, WITH_CONTROLLER, Scene, on_broker
from hostile_frames import HostileFrames
from raw_peers import Peer

FRAMES = 3000
FRAMES_PER_CONNECTION = 10  # a frame with a wrong length swallows those that follow


@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_frames_on_a_controller_listener_cause_no_bug(seed: int) -> None:
    async def script(scene: Scene) -> None:
        apis = scene.node.routers.controller.apis.values()
        names = {f"{api.name}Request" for api in apis}
        frames = HostileFrames(seed)
        frames._kinds = [each for each in frames._kinds if each[0] in names]
        network = scene.simulation.network.host("client")
        peer = Peer()
        await network.connect(CONTROLLER, peer, FRAME_BYTES_MAX)
        for number, frame in zip(range(FRAMES), frames, strict=False):
            if peer.is_lost.is_set() or number % FRAMES_PER_CONNECTION == 0:
                peer.connection.close()
                peer = Peer()
                await network.connect(CONTROLLER, peer, FRAME_BYTES_MAX)
            peer.connection.send([frame])
            await asyncio.sleep(0.002)
        assert [api.name for api in apis if not api.meter.count] == []
        assert scene.node.broker.bugs == 0
        assert scene.host.is_up

    on_broker(script, settings=WITH_CONTROLLER)
