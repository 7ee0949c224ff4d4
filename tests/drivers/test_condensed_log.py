"""A log condensed by a worker process replays like one read on the event loop, which is also the fallback."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.coordinators import partition_log
from moldau.broker.coordinators.condensed_log import CondensingJob, condense
from moldau.broker.coordinators.key_compaction import NewestValues
from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.drivers.replicated import ReplicatedDriver
from moldau.broker.groups.record_serde import GroupCoding
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.meters import TrafficMeter
from moldau.machines.groups import GroupSettings, GroupsMachine
from moldau.machines.groups.records import Record as GroupRecord
from moldau.machines.groups.records import offset_record
from moldau.model.errors import CorruptMessage, NotCoordinator
from moldau.model.ids import TopicId, TopicPartition
from moldau.model.ports import Ports
from moldau.model.units import KiB
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.executor import SystemExecutor
from moldau.node.ports.files import SystemDisk
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_transaction_marker
from moldau.records.record import Record
from moldau.storage.compaction import compact
from moldau.storage.log import Log
from moldau.storage.names import LOG, path_of
from moldau.storage.settings import LogSettings
from moldau.wire import messages
from moldau_dev.simulation.simulation import Simulation

FOLDER = "/data/t-0"
NEVER = 1 << 60
PRODUCERS = (1, 2, 3, 4)

Said = tuple[list[tuple[int, bytes, bytes]], list[tuple[int, int, int, bytes, bytes]]]
BetweenJobs = Callable[[int], None]


class WatchedExecutor:
    """The simulation's executor, which counts jobs and can act before or after one of them."""

    def __init__(self, ports: Ports) -> None:
        self._executor = ports.executor
        self.run = self._executor.run
        self.jobs = 0
        self.before: BetweenJobs = lambda _: None
        self.after: BetweenJobs = lambda _: None

    async def work_on_files(self, work: Callable[..., Any], job: Any, *, is_urgent: bool = False) -> Any:
        assert is_urgent
        self.jobs += 1
        self.before(self.jobs)
        try:
            return await self._executor.work_on_files(work, job, is_urgent=is_urgent)
        finally:
            self.after(self.jobs)

    async def close(self) -> None: ...


class PlainSerde:
    """Records without a conversion."""

    def encode(self, record: tuple[bytes, bytes | None]) -> tuple[bytes, bytes | None]:
        return record

    def decode(self, key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
        return key, value


class PartitionBench:
    """A partition with small segments."""

    def __init__(self, simulation: Simulation, **settings: Any) -> None:
        self.ports = simulation.host("node")._ports()
        self.now_ms = self.ports.clock.wall_ms()
        self.executor = WatchedExecutor(self.ports)
        chosen = LogSettings(
            **{
                "cleanup_policy": ("compact",),
                "segment_bytes": 2 * KiB,
                "min_cleanable_dirty_ratio": 0.0,
                "delete_retention_ms": 0,
                **settings,
            }
        )
        self.storage = Log.open(self.ports.disk, FOLDER, chosen, now_ms=self.now_ms)
        self.partition = Partition(
            TopicPartition("t", 0), TopicId(bytes(16)), self.storage, 0, TrafficMeter(), lambda _: None, lambda *_: None
        )
        self.cleaned_offset = 0

    def log(self, condensed_from_bytes: int) -> PartitionLog[tuple[bytes, bytes | None]]:
        return PartitionLog(
            self.partition,
            PlainSerde(),
            self.ports.clock,
            self.executor,
            read_bytes=512,
            condensed_from_bytes=condensed_from_bytes,
        )

    async def newest(self, condensed_from_bytes: int = 1) -> list[tuple[int, bytes, bytes | None]]:
        chunks = self.log(condensed_from_bytes).replay()
        return [(offset, *record) async for chunk in chunks for offset, record in chunk]

    def write(self, *records: tuple[bytes, bytes | None]) -> None:
        for key, value in records:
            end = self.storage.end_offset
            self.storage.append_as_follower(build_batch([Record(end, 1, key, value)], base_offset=end), 1)

    def compact(self) -> None:
        self.storage.roll(self.now_ms)
        job = self.storage.compaction_job(self.cleaned_offset, self.storage.end_offset, self.now_ms)
        self.now_ms += 10
        if job is not None:
            result = compact(self.ports.disk, job)
            for path in self.storage.replace_segments(result):
                self.ports.disk.unlink(path)

    def path(self, number: int) -> str:
        return path_of(FOLDER, self.storage.segment_base_offsets[number], LOG)


def on_bench(script: Callable[[PartitionBench], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def play(simulation: Simulation) -> None:
        await script(PartitionBench(simulation, **settings))

    Simulation(seed=1).run(play)


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "RANGE_BYTES", 3 * KiB)


# Contents


def _random_batch(chance: random.Random, offset: int) -> bytearray:
    producer_id = chance.choice(PRODUCERS)
    kind = chance.random()
    if kind < 0.15:
        return build_transaction_marker(
            is_commit=chance.random() < 0.6,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=1,
            base_offset=offset,
        )
    records = []
    for number in range(chance.choice((1, 1, 2, 5))):
        key = chance.choice((None, b"", b"k" * 100, *(b"key-%d" % each for each in range(12))))
        value = chance.choice((None, b"", b"v" * 100, b"%d" % (offset + number), b"%d" % (offset + number)))
        records.append(Record(offset + number, 1, key, value))
    compression = chance.choice((Compression.NONE, Compression.NONE, Compression.GZIP, Compression.LZ4))
    if kind < 0.5:
        return build_batch(
            records,
            base_offset=offset,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=chance.choice((0, 0, 1)),
            is_transactional=True,
        )
    return build_batch(records, base_offset=offset, compression=compression)


def _said(newest: NewestValues) -> Said:
    return sorted(newest), newest.pending()


def _noted(newest: NewestValues, batches: bytes) -> None:
    position = 0
    while position < len(batches):
        position, _ = newest.add(batches, position, 3)


@pytest.mark.proves("P3")
@pytest.mark.parametrize("seed", range(30))
def test_condensed_chunks_together_equal_the_log(seed: int) -> None:
    async def script(bench: PartitionBench) -> None:
        chance = random.Random(seed)
        for _ in range(chance.randrange(1, 400)):
            offset = bench.storage.end_offset + chance.choice((0, 0, 0, 100))
            bench.storage.append_as_follower(_random_batch(chance, offset), 1)
        whole, condensed, offset = NewestValues("log"), NewestValues("log"), bench.storage.start_offset
        while batches := bench.storage.read_bytes(offset, 700):
            _noted(whole, batches)
            offset = NewestValues("log").add(batches, 0, NEVER)[1]
        offset = bench.storage.start_offset
        while (log_range := bench.storage.log_range(offset, chance.choice((1, 500, 5_000, NEVER)))) is not None:
            result = condense(bench.ports.disk, CondensingJob("log", log_range, chance.choice((1, 2_000, NEVER))))
            assert result is not None
            assert len(result.batches) < log_range.size_bytes + 500
            _noted(condensed, result.batches)
            assert result.next_offset > offset
            offset = result.next_offset
        assert offset == bench.storage.end_offset
        assert _said(condensed) == _said(whole)

    on_bench(script)


@pytest.mark.proves("C3", part="committed offsets survive a crash")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("short_stretches")
def test_replay_through_a_worker_yields_the_same_records_in_order(seed: int) -> None:
    async def script(bench: PartitionBench) -> None:
        chance = random.Random(seed)
        for number in range(300):
            key, value = b"key-%d" % chance.randrange(20), b"%d" % number
            bench.write((key, chance.choice((None, value, value, value))))
        expected = await bench.newest(NEVER)
        assert bench.executor.jobs == 0
        assert await bench.newest() == expected
        assert bench.executor.jobs > 5
        bench.compact()
        assert await bench.newest() == expected

    on_bench(script)


async def test_real_worker_process_reads_real_files(tmp_path: Path) -> None:
    executor, clock = SystemExecutor(), SystemClock()
    storage = Log.open(SystemDisk(), str(tmp_path / "t-0"), LogSettings(segment_bytes=2 * KiB), now_ms=1)
    partition = Partition(
        TopicPartition("t", 0), TopicId(bytes(16)), storage, 0, TrafficMeter(), lambda _: None, lambda *_: None
    )
    replays: list[list[tuple[int, Any]]] = []
    for condensed_from_bytes in (NEVER, 1):
        log = PartitionLog(partition, PlainSerde(), clock, executor, condensed_from_bytes=condensed_from_bytes)
        for number in range(0 if replays else 200):
            log.append([[(b"key-%d" % (number % 7), b"%d" % number)]])
        replays.append([record async for chunk in log.replay() for record in chunk])
    assert replays[0] == replays[1]
    assert [offset for offset, _ in replays[1]] == list(range(193, 200))
    storage.close(1)
    await executor.close()


def test_short_log_is_read_on_the_event_loop() -> None:
    async def script(bench: PartitionBench) -> None:
        bench.write((b"a", b"1"), (b"b", b"1"))
        assert len(await bench.newest(bench.storage.size_bytes + 1)) == 2
        assert bench.executor.jobs == 0
        assert len(await bench.newest(bench.storage.size_bytes)) == 2
        assert bench.executor.jobs == 1

    on_bench(script)


def test_response_of_one_job_is_bounded() -> None:
    async def script(bench: PartitionBench) -> None:
        bench.write(*((b"key-%04d" % number, b"v" * 50) for number in range(300)))
        offset, sizes = 0, []
        while (log_range := bench.storage.log_range(offset, NEVER)) is not None:
            condensed = condense(bench.ports.disk, CondensingJob("log", log_range, condensed_bytes_max=4 * KiB))
            assert condensed is not None
            sizes.append(len(condensed.batches))
            offset = condensed.next_offset
        assert len(sizes) > 3
        assert max(sizes) < 7 * KiB

    on_bench(script)


# Concurrent changes of the files


def _do(what: Callable[[], None], _: int) -> None:
    what()


def _fill(bench: PartitionBench) -> None:
    for number in range(200):
        bench.write((b"key-%d" % (number % 7), b"%d" % number))


def test_file_missing_or_corrupt_for_the_worker_is_read_on_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(bench: PartitionBench) -> None:
        _fill(bench)
        expected = await bench.newest(NEVER)
        disk, path = bench.ports.disk, bench.path(1)
        whole = disk.read(path)

        def put(contents: bytes) -> None:
            file = disk.open(path, create=True)
            file.pwrite(contents, 0)
            file.truncate(len(contents))
            file.close()

        def vanish() -> None:
            disk.rename(path, path + ".aside")

        troubles: list[Callable[[], None]] = [
            vanish,
            lambda: put(whole[:-1]),
            lambda: put(whole[:-100] + bytes(100)),
            lambda: put(bytes([whole[0] ^ 1]) + whole[1:-1]),
        ]
        for trouble in troubles:
            bench.executor.before = partial(_do, trouble)

            def repair(_: int) -> None:
                if disk.exists(path + ".aside"):
                    disk.rename(path + ".aside", path)
                put(whole)

            bench.executor.after = repair
            jobs = bench.executor.jobs
            assert await bench.newest() == expected
            assert bench.executor.jobs == jobs + 1

    on_bench(script)
    assert not caplog.records


def test_persistent_corruption_is_reported_as_by_the_event_loop() -> None:
    async def script(bench: PartitionBench) -> None:
        _fill(bench)
        file = bench.ports.disk.open(bench.path(1))
        file.pwrite(b"\xff", 70)
        file.close()
        with pytest.raises(CorruptMessage, match="corrupt"):
            await bench.newest()

    on_bench(script)


def test_replay_continues_on_the_loop_when_the_worker_dies(caplog: pytest.LogCaptureFixture) -> None:
    async def script(bench: PartitionBench) -> None:
        _fill(bench)

        def die(_: int) -> None:
            raise OSError("a worker process has died")

        bench.executor.before = die
        assert await bench.newest() == await bench.newest(NEVER)

    on_bench(script)
    assert "loading without a worker process" in caplog.text


@pytest.mark.proves("C3", part="committed offsets survive a crash")
@pytest.mark.parametrize("condensed_from_bytes", [1, NEVER])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("short_stretches")
def test_tombstone_compacted_between_two_reads_does_not_revive_its_key(when: str, condensed_from_bytes: int) -> None:
    """The first chunk has the value, the last one had the tombstone."""

    async def script(bench: PartitionBench) -> None:
        bench.write((b"gone", b"1"))
        _fill(bench)
        bench.write((b"gone", None))
        _fill(bench)
        expected = await bench.newest(NEVER)
        bench.executor.jobs = 0
        reads = 0

        def compact_once(_: int) -> None:
            nonlocal reads
            reads += 1
            if reads == 2:
                size = bench.storage.size_bytes
                bench.compact()
                bench.compact()
                assert bench.storage.size_bytes < size / 4

        async def run(work: Callable[..., Any], *arguments: object) -> Any:
            result = await bench.ports.executor.run(work, *arguments)
            compact_once(0)
            return result

        setattr(bench.executor, when, compact_once)
        bench.executor.run = run
        assert await bench.newest(condensed_from_bytes) == expected
        assert b"gone" not in {key for _, key, _ in expected}

    on_bench(script)


@pytest.mark.usefixtures("short_stretches")
def test_records_deleted_during_the_replay_are_no_error() -> None:
    async def script(bench: PartitionBench) -> None:
        _fill(bench)
        _fill(bench)
        bench.executor.after = lambda number: bench.storage.advance_start_offset(390) if number == 2 else None
        assert [offset for offset, *_ in await bench.newest()] == list(range(393, 400))

    on_bench(script)


# Leadership changes


@pytest.mark.usefixtures("short_stretches")
def test_lost_leadership_ends_the_load_and_its_jobs() -> None:
    async def script(bench: PartitionBench) -> None:
        coding = GroupCoding()
        log: PartitionLog[GroupRecord] = PartitionLog(
            bench.partition, coding, bench.ports.clock, bench.executor, batches=coding, condensed_from_bytes=1
        )
        value = messages.OffsetCommitValue(offset=5, leader_epoch=0, metadata="", commit_timestamp=1)
        for number in range(400):
            log.append([[offset_record("g", "t", number % 10, value)]])
        bench.partition.committed_to(400, 0)
        machines: list[GroupsMachine] = []

        def new_machine() -> GroupsMachine:
            machines.append(GroupsMachine(GroupSettings()))
            return machines[-1]

        driver: ReplicatedDriver[GroupsMachine, GroupRecord] = ReplicatedDriver(log, new_machine, bench.ports.clock)
        bench.executor.before = lambda number: driver.resign() if number == 3 else None
        await driver.lead()
        assert not driver.is_leading
        assert bench.executor.jobs == 3
        assert not machines[0].state.offsets
        with pytest.raises(NotCoordinator):
            await driver.read(lambda machine: machine)
        bench.executor.before = lambda _: None
        await driver.lead()
        assert len(await driver.read(lambda machine: machine.state.offsets["g"]["t"])) == 10
        await driver.close()

    on_bench(script)


def test_cancelled_load_leaves_no_jobs() -> None:
    async def script(bench: PartitionBench) -> None:
        _fill(bench)
        task: asyncio.Task[Any] = asyncio.ensure_future(bench.newest())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bench.executor.jobs == 1

    on_bench(script)
