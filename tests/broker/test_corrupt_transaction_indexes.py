"""Flipped bits in transaction indexes: read_committed consumers never get a record of an aborted transaction."""

import asyncio
import random

import pytest
from broker_scene import Scene, Talker, fetch, on_broker
from test_log_cleaner import EAGER, ROUNDS_S, fillers, put
from test_log_maintenance import read_all
from test_share_partitions import PRODUCER, append, end_open_transaction
from writer_scene import NOW_MS, READ_COMMITTED, Writer, play

from moldau.client.types import AbortedTransaction, Isolation
from moldau.client.visibility import visible_batches
from moldau.records.builder import build_batch
from moldau.records.record import iterate_records
from moldau.storage.transaction_index import ENTRY_BYTES

pytestmark = pytest.mark.proves("S10")

ROUNDS = 9
TIMESTAMP_MS = 1_700_000_000_000  # that of the other records of the log
COMMITTED = [b"committed %d" % number for number in range(0, ROUNDS, 3)]


async def fill(scene: Scene, writer: Writer) -> list[str]:
    """Write transactions in three segments, two of three aborted; return the paths of the transaction indexes."""
    log = scene.node.broker.partitions.get("t", 0).log
    for number in range(ROUNDS):
        is_commit = number % 3 == 0
        await writer.write(b"%s %d" % (b"committed" if is_commit else b"aborted", number))
        await writer.finish(is_commit=is_commit)
        if number in (2, 5):
            log.roll(NOW_MS)
    await scene.host.stop()
    paths = [path for path in scene.host.disk.contents() if "/t-0/" in path and path.endswith(".txnindex")]
    assert len(paths) == 3
    return sorted(paths)


async def read_committed(talker: Talker, offset: int = 0) -> list[bytes]:
    """Read to the end as a consumer does."""
    shown: list[bytes] = []
    while True:
        response = await fetch(talker, "t", offset, 12, isolation_level=READ_COMMITTED)
        assert response.error_code == 0
        aborted = [AbortedTransaction(each.producer_id, each.first_offset) for each in response.aborted_transactions]
        if not response.records:
            return shown
        for header, batch, is_visible in visible_batches(response.records, aborted, Isolation.READ_COMMITTED):
            offset = header.next_offset
            if is_visible:
                shown += [record.value or b"" for record in iterate_records(batch)]


@pytest.mark.parametrize("seed", range(6))
def test_read_committed_consumer_gets_no_aborted_record(seed: int) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        paths = await fill(scene, writer)
        intact = {path: scene.host.disk.contents()[path] for path in paths}
        scene.simulation.disks_fail = True
        rng = random.Random(seed)
        for path in paths:
            scene.host.disk.flip_bit(path, rng.randrange(len(intact[path])), rng.randrange(8))
        scene.node = await scene.host.restart()
        assert await read_committed(await scene.connect()) == COMMITTED
        assert scene.node.broker.log_scrubber.restored_indexes == len(paths)
        contents = scene.host.disk.contents()
        assert {path: contents[path] for path in paths} == intact

    play(script)


@pytest.mark.parametrize("field", [2, 10, 18, 26], ids=["producer id", "first offset", "last offset", "stable offset"])
def test_flipped_bit_of_each_field_is_found_by_the_first_fetch(field: int) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        path = (await fill(scene, writer))[1]
        scene.simulation.disks_fail = True
        scene.host.disk.flip_bit(path, field + 7, 1)
        assert len(scene.host.disk.contents()[path]) == 2 * ENTRY_BYTES
        scene.node = await scene.host.restart()
        assert await read_committed(await scene.connect(), offset=6) == COMMITTED[1:]
        assert scene.node.broker.log_scrubber.restored_indexes == 1

    play(script)


def test_compaction_keeps_the_committed_value_of_a_key() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await scene.create("t", **EAGER)
        await put(talker, (b"k", b"committed"))
        append(scene, build_batch([(TIMESTAMP_MS, b"k", b"aborted", ())], base_sequence=0, **PRODUCER))
        end_open_transaction(scene, is_commit=False)
        log = scene.node.broker.partitions.get("t", 0).log
        segment = log.segment_of(2)  # of the marker
        assert segment is not None
        log.roll(NOW_MS)
        segment.release()
        scene.simulation.disks_fail = True
        scene.host.disk.flip_bit(segment.aborted.path, 2 + 7)  # the producer id
        await fillers(talker, 60)
        await asyncio.sleep(ROUNDS_S)
        assert scene.node.broker.log_maintenance._cleaner.rounds >= 1
        assert [record.value for record in await read_all(talker, "t", 0) if record.key == b"k"] == [b"committed"]

    on_broker(script)
