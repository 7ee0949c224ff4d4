"""A follower validates the batches that it fetches."""

import asyncio
from collections.abc import Callable

import pytest
from broker_scene import batch, produce
from cluster_scene import Cluster, on_cluster
from replica_scene import are_same, contents, copy_of, create, send, values

from moldau.broker.partitions.partition import Partition
from moldau.records.header import read_header

LEADER, ME = 2, 3


def tamper(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytearray, int], None]) -> list[bytes]:
    """Change the first response with two batches: `change` gets it, and the position of the second batch."""
    seen: list[bytes] = []
    append = Partition.append_as_follower

    def tampered(self: Partition, batches: memoryview, *others: int) -> None:
        second = read_header(batches).size_bytes
        if not seen and second < len(batches):
            changed = bytearray(batches)
            change(changed, second)
            seen.append(bytes(changed))
            batches = memoryview(changed)
        append(self, batches, *others)

    monkeypatch.setattr(Partition, "append_as_follower", tampered)
    return seen


async def several_at_once(cluster: Cluster) -> None:
    """Append batches while the follower is paused: the first completes its fetch, the rest come in one response."""
    cluster.host(ME).pause()
    talker = await cluster.connect(LEADER)
    for value in (b"b", b"c", b"d"):
        assert (await produce(talker, "t", batch(value), acks=1)).error_code == 0
    cluster.host(ME).resume()


def flip(batches: bytearray, _: int) -> None:
    batches[-1] ^= 1


def outdate(batches: bytearray, second: int) -> None:
    """Emulate a leader that was deposed while the fetch waited, and has batches of the next epoch."""
    batches[second + 12 : second + 16] = (7).to_bytes(4)  # the leader epoch, which the checksum does not cover


@pytest.mark.proves("S6", part="synced clusters")
def test_batches_before_a_corrupt_one_are_kept_once_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[LEADER, ME]], flush_messages=1, min_insync_replicas=2)
        await send(cluster, b"a")
        seen = tamper(monkeypatch, flip)
        cluster.host(ME).slowness = 2000.0
        await several_at_once(cluster)
        leader, follower = copy_of(cluster, LEADER), copy_of(cluster, ME)
        while leader.high_watermark < 4:
            assert leader.high_watermark <= follower.log.recovery_point
            await asyncio.sleep(0.001)
        assert seen
        await are_same(cluster, LEADER, ME)

    on_cluster(script, settings=["broker.session.timeout.ms=60000"])


@pytest.mark.proves("H5", part="fencing")
def test_batch_with_a_later_leader_epoch_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[LEADER, ME]], min_insync_replicas=1)
        await send(cluster, b"a")
        seen = tamper(monkeypatch, outdate)
        await several_at_once(cluster)
        await are_same(cluster, LEADER, ME)
        assert seen
        assert copy_of(cluster, ME).log.epochs.latest == 0
        assert values(contents(copy_of(cluster, ME))) == [b"a", b"b", b"c", b"d"]

    on_cluster(script)
