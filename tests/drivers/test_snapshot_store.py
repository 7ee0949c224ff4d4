"""The snapshot store: downloads in chunks, late chunks, and the deletion of old snapshots."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from metadata_host import DATA, FOLDER, VOTER, MetadataHost, create, register

from moldau.broker.configs.broker_settings import MetadataLogSettings
from moldau.broker.drivers.membership import Membership
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.drivers.metadata_snapshots import CorruptSnapshot, SnapshotId, bootstrap_snapshot, check_snapshot
from moldau.broker.drivers.quorum_peers import QuorumPeers
from moldau.broker.drivers.snapshot_store import SnapshotStore
from moldau.machines.raft import (
    Event,
    FetchSnapshotResponseReceived,
    OffsetAndEpoch,
    SendFetch,
    SendFetchSnapshot,
    VoterSet,
)
from moldau.model.ids import Address, NodeId
from moldau.testing.disk import SimulatedDisk
from moldau.wire.messages import FetchSnapshotResponse
from moldau_dev.simulation.executor import SimulatedExecutor
from moldau_dev.simulation.loop import SimulatedLoop

pytestmark = pytest.mark.proves("H6", part="snapshots")

NEVER = MetadataLogSettings(metadata_log_max_snapshot_interval_ms=0)
SNAPSHOT = SnapshotId(50, 3)
_, WHOLE = bootstrap_snapshot(VoterSet.of([VOTER]), 1)


def on_store(script: Callable[[SnapshotStore, SimulatedDisk], Coroutine[Any, Any, None]]) -> None:
    disk = SimulatedDisk(0)
    disk.prepare_folder(DATA)
    disk.prepare_folder(FOLDER)
    mounted, loop = disk.mount(), SimulatedLoop()
    loop.run(script(SnapshotStore(mounted, SimulatedExecutor(loop, random.Random(0), mounted), FOLDER), disk))


def names(disk: SimulatedDisk) -> list[str]:
    return disk.mount().list(FOLDER)


# Downloads


def test_late_chunk_does_not_change_a_snapshot_being_stored() -> None:
    async def script(store: SnapshotStore, disk: SimulatedDisk) -> None:
        incoming = store.receive(SNAPSHOT)
        incoming.add(0, len(WHOLE), WHOLE)
        keeping = asyncio.create_task(incoming.keep())
        await asyncio.sleep(0)
        late = store.receive(SNAPSHOT)
        late.add(0, len(WHOLE), WHOLE[:40])
        assert (await keeping).data == WHOLE
        check_snapshot(SNAPSHOT, disk.mount().read(f"{FOLDER}/{SNAPSHOT.name}"))
        late.drop()
        assert names(disk) == [SNAPSHOT.name]
        assert store.newest == SNAPSHOT

    on_store(script)


def test_failed_snapshot_leaves_no_files() -> None:
    async def script(store: SnapshotStore, disk: SimulatedDisk) -> None:
        broken = store.receive(SNAPSHOT)
        broken.add(0, 40, WHOLE[:40])
        with pytest.raises(CorruptSnapshot):
            await broken.keep()
        incoming = store.receive(SNAPSHOT)
        incoming.add(0, len(WHOLE), WHOLE)
        disk.fail("rename", errno.ENOSPC, path=".checkpoint")
        with pytest.raises(OSError, match="No space"):
            await incoming.keep()
        assert names(disk) == []
        assert store.newest is None

    on_store(script)


# Chunks in flight


class Responses:
    """Replaces connections to other nodes: responds on demand."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[Any]] = []

    async def ask(self, *_: object, **__: object) -> Any:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]


def asks_for_piece(number: int, snapshot: SnapshotId = SNAPSHOT) -> SendFetchSnapshot:
    return SendFetchSnapshot(
        to=NodeId(2),
        endpoints=(("CONTROLLER", Address("n2", 9093)),),
        epoch=3,
        snapshot=OffsetAndEpoch(*snapshot),
        position=0,
        number=number,
    )


def asks_for_records(number: int) -> SendFetch:
    endpoints = (("CONTROLLER", Address("n2", 9093)),)
    return SendFetch(
        to=NodeId(2), endpoints=endpoints, epoch=3, offset=0, last_epoch=0, high_watermark=0, number=number
    )


def piece(data: bytes) -> FetchSnapshotResponse:
    response = FetchSnapshotResponse
    found = response.PartitionSnapshot(size=len(WHOLE), position=0, unaligned_records=data)
    return response(topics=[response.TopicSnapshot(name="__cluster_metadata", partitions=[found])])


def on_peers(script: Callable[[QuorumPeers, Responses, list[Event]], Coroutine[Any, Any, None]]) -> None:
    async def play(store: SnapshotStore, _: SimulatedDisk) -> None:
        responses, events, failures = Responses(), list[Event](), list[BaseException]()

        def post(event: Event, records: object = None) -> None:  # noqa: ARG001
            events.append(event)

        peers = QuorumPeers(Membership(VOTER, "cluster"), responses, store, post, failures.append)  # type: ignore[arg-type]
        await script(peers, responses, events)
        await peers.close()
        assert not failures

    on_store(play)


@pytest.mark.parametrize("next_send", [asks_for_piece(2), asks_for_records(2)], ids=["piece", "records"])
def test_response_to_an_older_chunk_request_is_ignored(next_send: SendFetchSnapshot | SendFetch) -> None:
    async def script(peers: QuorumPeers, responses: Responses, events: list[Event]) -> None:
        peers.send(asks_for_piece(1))
        await asyncio.sleep(0)
        peers.send(next_send)
        await asyncio.sleep(0)
        old, new = responses.waiting
        if not old.done():
            old.set_result(piece(WHOLE[:40]))
        await asyncio.sleep(0)
        assert not events
        assert peers.incoming is None
        if isinstance(next_send, SendFetchSnapshot):
            new.set_result(piece(WHOLE))
            await asyncio.sleep(0)
            (event,) = events
            assert isinstance(event, FetchSnapshotResponseReceived)
            assert event.request == next_send
            assert (await peers.take_incoming(SNAPSHOT).keep()).data == WHOLE

    on_peers(script)


@pytest.mark.parametrize(
    ("come", "wanted"),
    [(None, SNAPSHOT), (WHOLE, SnapshotId(60, 3)), (WHOLE[:40], SNAPSHOT)],
    ids=["none", "another", "half"],
)
def test_only_the_complete_requested_snapshot_is_loaded(come: bytes | None, wanted: SnapshotId) -> None:
    async def script(peers: QuorumPeers, responses: Responses, events: list[Event]) -> None:  # noqa: ARG001
        if come is not None:
            peers.send(asks_for_piece(1))
            await asyncio.sleep(0)
            responses.waiting[0].set_result(piece(come))
            await asyncio.sleep(0)
            assert peers.incoming is not None
        with pytest.raises(CorruptSnapshot):
            peers.take_incoming(wanted)
        assert peers.incoming is None

    on_peers(script)


# Deletion


def host_with_many(count: int = 4) -> MetadataHost:
    """Return a host whose disk failed to delete old snapshots."""
    host = MetadataHost(NEVER)

    async def act(driver: MetadataDriver) -> None:
        await register(driver)
        for number in range(count):
            await create(driver, f"topic-{number}")
            await driver.take_snapshot()

    host.disk.fail("unlink", errno.EIO, path=".checkpoint", times=1000)
    host.run(act)
    host.disk.forget_plans()
    assert len(host.names(".checkpoint")) == count
    return host


def test_node_starts_though_old_snapshots_cannot_be_deleted() -> None:
    host = host_with_many()

    async def look(driver: MetadataDriver) -> int:
        return len(driver.image.topics)

    host.disk.fail("unlink", errno.EIO, path=".checkpoint")
    assert host.run(look) == 4
    host.disk.forget_plans()
    assert host.run(look) == 4
    assert len(host.names(".checkpoint")) == 2
    assert not host.failures


def test_concurrent_deletions_of_old_snapshots_succeed() -> None:
    async def script(store: SnapshotStore, disk: SimulatedDisk) -> None:
        ids = [SnapshotId(offset, 1) for offset in (10, 20, 30, 40)]
        for each in ids:
            incoming = store.receive(each)
            incoming.add(0, len(WHOLE), WHOLE)
            await incoming.keep()
        await asyncio.gather(store.drop_obsolete(), store.drop_obsolete())
        assert store.ids == ids[2:]
        assert names(disk) == [each.name for each in ids[2:]]

    on_store(script)
