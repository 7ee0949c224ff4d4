"""Flipped bits in cold data: never served, found by the scrubber, repaired from another replica."""

import asyncio
import random

import pytest
from broker_scene import Scene, batch, fetch, on_broker, produce
from cluster_scene import Cluster, on_cluster
from replica_scene import are_same, contents, copy_of, create, leader_of, send, values, where

from moldau.model.errors import ErrorCode
from moldau.records.header import read_header
from moldau.testing.disk import SimulatedDisk

RECORDS = 60
SCRUB_OFF = "moldau.log.scrub.interval.ms=-1"
INTERVAL_S = 20
SCRUB_OFTEN = f"moldau.log.scrub.interval.ms={INTERVAL_S * 1000}"


def value_of(number: int) -> bytes:
    return b"%d:" % number * 40


def files(disk: SimulatedDisk, *suffixes: str) -> list[str]:
    """Return the files of closed segments of the topic."""
    names = sorted(
        path for path, content in disk.contents().items() if "/t-0/0" in path and path.endswith(suffixes) and content
    )
    newest = max(path.rpartition("/")[2][:20] for path in names)
    return [path for path in names if newest not in path]


def flip_random_bits(disk: SimulatedDisk, rng: random.Random, count: int, *suffixes: str) -> None:
    for _ in range(count):
        path = rng.choice(files(disk, *suffixes))
        disk.flip_bit(path, rng.randrange(disk.mount().size(path)))


async def fill_alone(scene: Scene) -> None:
    await scene.create("t", retention_ms=-1, segment_bytes=2000, index_interval_bytes=400)
    talker = await scene.connect()
    for number in range(RECORDS):
        response = await produce(talker, "t", batch(value_of(number)))
        assert response.error_code == 0, response


async def read_everything(scene: Scene) -> tuple[dict[int, bytes], set[int]]:
    """Read each offset as a client that does not check CRCs; return the values, and the offsets that are corrupt."""
    talker = await scene.connect()
    found: dict[int, bytes] = {}
    rejected = set()
    for offset in range(RECORDS):
        response = await fetch(talker, "t", offset, 12, max_bytes=1)
        if response.error_code:
            assert response.error_code == ErrorCode.CORRUPT_MESSAGE
            rejected.add(offset)
        else:
            (value,) = values(bytes(response.records))[:1]
            assert value is not None
            found[offset] = value
    return found, rejected


@pytest.mark.proves("S10")
@pytest.mark.parametrize("seed", range(4))
def test_cold_reader_gets_no_wrong_byte_and_every_intact_record(seed: int) -> None:
    async def script(scene: Scene) -> None:
        await fill_alone(scene)
        await scene.host.stop()
        scene.simulation.disks_fail = True
        flip_random_bits(scene.host.disk, random.Random(seed), 8, ".log")
        scene.node = await scene.host.restart()
        found, rejected = await read_everything(scene)
        assert all(value == value_of(offset) for offset, value in found.items())
        assert 1 <= len(rejected) <= 8
        again, still_rejected = await read_everything(scene)
        assert (again, still_rejected) == (found, rejected)
        scrubber = scene.node.broker.log_scrubber
        assert 1 <= scrubber.corrupt_ranges <= len(rejected)

    on_broker(script, settings=[SCRUB_OFF])


@pytest.mark.proves("S10")
def test_large_fetch_ends_before_a_corrupt_batch() -> None:
    async def script(scene: Scene) -> None:
        await fill_alone(scene)
        await scene.host.stop()
        scene.simulation.disks_fail = True
        path = files(scene.host.disk, ".log")[0]
        scene.host.disk.flip_bit(path, scene.host.disk.mount().size(path) // 2)
        scene.node = await scene.host.restart()
        talker = await scene.connect()
        first = await fetch(talker, "t", 0, 12)
        assert first.error_code == 0
        got = values(bytes(first.records))
        assert got == [value_of(number) for number in range(len(got))]
        damage = scene.node.broker.partitions.get("t", 0).corruption.first
        assert damage is not None
        assert damage.offset == len(got) > 0

    on_broker(script, settings=[SCRUB_OFF])


@pytest.mark.proves("S10")
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_one_pass_of_the_scrubber_finds_every_flipped_bit(suffix: str) -> None:
    async def script(scene: Scene) -> None:
        await fill_alone(scene)
        await scene.host.stop()
        scene.simulation.disks_fail = True
        rng = random.Random(5)
        hit = rng.sample(files(scene.host.disk, suffix), 3)
        for path in hit:  # in the first byte of a header or entry: any change matters
            scene.host.disk.flip_bit(path, 4)
        scene.node = await scene.host.restart()
        scrubber = scene.node.broker.log_scrubber
        await asyncio.sleep(3 * INTERVAL_S)
        assert scrubber.passes >= 1
        if suffix == ".log":
            assert scrubber.corrupt_ranges == 3
        else:
            assert (scrubber.corrupt_ranges, scrubber.restored_indexes) == (0, 3)
            found, rejected = await read_everything(scene)
            assert (len(found), rejected) == (RECORDS, set())

    on_broker(script, settings=[SCRUB_OFTEN])


@pytest.mark.proves("S10")
def test_pass_continues_after_a_restart() -> None:
    async def script(scene: Scene) -> None:
        await fill_alone(scene)
        await asyncio.sleep(300)
        before = scene.node.broker.log_scrubber
        assert 0.2 < before.progress < 0.8
        await scene.restart_after_crash()
        await asyncio.sleep(200)
        after = scene.node.broker.log_scrubber
        assert after.passes == 0
        await asyncio.sleep(150)  # the pass began ten minutes ago
        assert after.passes == 1
        assert before.bytes_read + after.bytes_read < before.bytes_read * 2.5

    on_broker(script, settings=["moldau.log.scrub.interval.ms=600000"])


@pytest.mark.proves("S10", "H3")
@pytest.mark.parametrize("seed", range(3))
def test_scrubber_repairs_a_replica_from_the_others(seed: int) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]], retention_ms=-1, segment_bytes=2000, index_interval_bytes=400)
        for number in range(RECORDS):
            await send(cluster, value_of(number))
        await are_same(cluster, 1, 2, 3)
        rng = random.Random(seed)
        victim = 2 if seed % 2 else 3
        await cluster.stop(victim)
        cluster.simulation.disks_fail = True
        flip_random_bits(cluster.host(victim).disk, rng, 6, ".log", ".index", ".timeindex")
        await cluster.start(victim)
        await cluster.until(lambda: len(where(cluster).isr) == 3, 30.0)
        bytes_in = copy_of(cluster, victim).traffic.replication_bytes_in
        scrubber = cluster.nodes[victim].broker.log_scrubber
        await asyncio.sleep(3 * INTERVAL_S)
        assert scrubber.passes >= 1
        assert scrubber.corrupt_ranges >= 1
        await cluster.until(lambda: len(where(cluster).isr) == 3, 30.0)
        await are_same(cluster, 1, 2, 3)
        assert copy_of(cluster, victim).corruption.first is None
        assert copy_of(cluster, victim).traffic.replication_bytes_in > bytes_in
        log = copy_of(cluster, victim).log
        whole = b"".join(log.read_bytes(base, 1 << 30) for base in log.segment_base_offsets)
        assert values(whole) == [value_of(number) for number in range(RECORDS)]
        assert leader_of(cluster) in (1, 2, 3)
        assert contents(copy_of(cluster, victim))

    on_cluster(script, settings=[SCRUB_OFTEN])


@pytest.mark.proves("S10", "H3")
@pytest.mark.parametrize("byte", [6, 14], ids=["base offset", "leader epoch"])
def test_scrubber_repairs_what_no_checksum_covers(byte: int) -> None:
    """A recovery scan takes such a batch for a valid one."""

    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]], retention_ms=-1, segment_bytes=2000)
        for number in range(RECORDS):
            await send(cluster, value_of(number))
        await are_same(cluster, 1, 2, 3)
        await cluster.stop(3)
        cluster.simulation.disks_fail = True
        disk = cluster.host(3).disk
        path = files(disk, ".log")[1]
        disk.flip_bit(path, _second_batch(disk, path) + byte, 0)
        await cluster.start(3)
        await asyncio.sleep(3 * INTERVAL_S)
        assert cluster.nodes[3].broker.log_scrubber.corrupt_ranges == 1
        await cluster.until(lambda: len(where(cluster).isr) == 3, 30.0)
        logs = [copy_of(cluster, node_id).log for node_id in (2, 3)]
        wholes = [b"".join(log.read_bytes(base, 1 << 30) for base in log.segment_base_offsets) for log in logs]
        assert wholes[0] == wholes[1]

    on_cluster(script, settings=[SCRUB_OFTEN])


def _second_batch(disk: SimulatedDisk, path: str) -> int:
    return read_header(disk.contents()[path]).size_bytes


@pytest.mark.proves("S10")
def test_unreadable_sector_hides_only_its_own_records() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", retention_ms=-1, segment_bytes=100_000)
        talker = await scene.connect()
        for number in range(RECORDS):
            await produce(talker, "t", batch(value_of(number) * 20))
        await scene.host.stop()
        scene.simulation.disks_fail = True
        path = files(scene.host.disk, ".log")[0]
        scene.host.disk.break_sector(path, 30_000)
        scene.node = await scene.host.restart()
        await asyncio.sleep(3 * INTERVAL_S)
        assert scene.node.broker.log_scrubber.corrupt_ranges == 1
        damage = scene.node.broker.partitions.get("t", 0).corruption.first
        assert damage is not None
        assert damage.end_offset - damage.offset <= 5
        talker = await scene.connect()
        for offset in range(RECORDS):
            response = await fetch(talker, "t", offset, 12, max_bytes=1)
            is_hidden = damage.offset <= offset < damage.end_offset
            assert (response.error_code == 0) is not is_hidden, (offset, response.error_code)

    on_broker(script, settings=[SCRUB_OFTEN])
