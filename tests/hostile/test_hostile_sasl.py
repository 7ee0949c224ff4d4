"""Mutated SASL exchanges: none authenticates, changes state or meets a bug, and each ends within bounds."""

import asyncio
import os
import random
import struct

import pytest
from broker_scene import Scene, batch, on_broker, produce_request
from raw_peers import raw_peer
from sasl_scene import WITH_ALL, is_served, log_in

from moldau.machines.access.plain import plain_message
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

EXCHANGES = 400
SEEDS = int(os.environ.get("SASL_SEEDS", "3"))  # `make fuzz-security` sets more
TOPIC = CreateTopicsRequest(
    topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
)


def exchange(rng: random.Random) -> list[bytes]:
    """Return frames of a login that is nearly right, with frames of other requests and raw messages between."""
    mechanism = rng.choice(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "", "\0" * 300])
    messages = [
        plain_message("alice", rng.choice(["", "pw-b", "pw-a\0", "x" * 10_000])),
        b"n,,n=alice,r=" + rng.randbytes(4).hex().encode(),
        b"n,,n=alice,r=x,tokenauth=true",
        b"c=biws,r=x,p=AAAA",
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        rng.randbytes(rng.choice([0, 1, 50, 5000])),
    ]
    requests = [
        (rng.choice([0, 3, 4]), ApiVersionsRequest(client_software_name="a", client_software_version="1")),
        (rng.choice([0, 1]), SaslHandshakeRequest(mechanism=mechanism)),
        *((rng.choice([0, 1, 2]), SaslAuthenticateRequest(auth_bytes=each)) for each in rng.sample(messages, 3)),
        (7, TOPIC),
        (9, produce_request("t", batch(b"a"))),
    ]
    if rng.random() < 0.5:
        rng.shuffle(requests)
    frames = []
    for number, (version, request) in enumerate(requests):
        header = RequestHeader(request.API_KEY, version, number, "peer")
        frame = bytearray(b"".join(bytes(each) for each in frame_request(header, request)))  # type: ignore[arg-type]
        if rng.random() < 0.3:
            frame[rng.randrange(4, len(frame))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.1:
            raw = rng.choice(messages)
            frame = bytearray(struct.pack(">i", len(raw)) + raw)
        frames.append(bytes(frame))
    return frames


@pytest.mark.parametrize("seed", range(SEEDS))
def test_mutated_exchange_authenticates_no_peer_and_changes_nothing(seed: int) -> None:
    async def script(scene: Scene) -> None:
        rng, broker = random.Random(seed), scene.node.broker
        offset = broker.metadata.image.offset
        served = await log_in(scene)
        limits = scene.node._listeners.limits
        for _ in range(EXCHANGES):
            peer = await raw_peer(scene)
            for frame in exchange(rng):
                peer.connection.send([frame])
                if rng.random() < 0.3:
                    await asyncio.sleep(0.001)
            assert len(limits._unauthenticated) <= broker.settings.unauthenticated_connections_max
        await asyncio.sleep(60)  # the time to authenticate is over for all
        assert broker.bugs == 0
        assert "t" not in broker.image.topics
        assert broker.metadata.image.offset == offset
        assert broker.authentication_meter.successes == 1
        assert len(limits) == 1
        assert await is_served(served)

    on_broker(script, settings=[*WITH_ALL, "moldau.max.unauthenticated.connections=50"])


@pytest.mark.parametrize("size", [512 * 1024 + 1, 100 * 1024 * 1024, 2**31 - 1, -1])
def test_huge_frame_is_rejected_by_its_length_alone(size: int) -> None:
    async def script(scene: Scene) -> None:
        peer = await raw_peer(scene)
        peer.connection.send([struct.pack(">i", size)])
        async with asyncio.timeout(5):
            await peer.is_lost.wait()

    on_broker(script, settings=WITH_ALL)
