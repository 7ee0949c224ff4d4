"""A machine's log on a partition: one batch per decision, replay, commit notifications."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.meters import TrafficMeter
from moldau.model.errors import NotLeaderOrFollower
from moldau.model.ids import TopicId, TopicPartition
from moldau.records.compression import Compression
from moldau.records.control import ControlType, build_control_batch
from moldau.records.header import read_header
from moldau.records.record import iterate_batches
from moldau.storage.log import Log
from moldau.storage.settings import LogSettings
from moldau_dev.simulation.simulation import Simulation

Words = tuple[str, str | None]


class WordCoding:
    def encode(self, record: Words) -> tuple[bytes, bytes | None]:
        key, value = record
        return key.encode(), None if value is None else value.encode()

    def decode(self, key: bytes, value: bytes | None) -> Words | None:
        return None if key == b"foreign" else (key.decode(), None if value is None else value.decode())


class LogBench:
    """A partition in its own folder, and a machine log on it."""

    def __init__(self, simulation: Simulation, compression: Compression = Compression.NONE, **settings: Any) -> None:
        host = simulation.host("node")
        self.ports = host._ports()
        log = Log.open(self.ports.disk, "/data/t-0", LogSettings(**settings), now_ms=self.ports.clock.wall_ms())
        self.syncs: list[Partition] = []
        self.partition = Partition(
            TopicPartition("t", 0), TopicId(bytes(16)), log, 3, TrafficMeter(), self.syncs.append, lambda *_: None
        )
        self.log: PartitionLog[Words] = PartitionLog(
            self.partition, WordCoding(), self.ports.clock, self.ports.executor, compression, read_bytes=256
        )

    async def replayed(self) -> list[tuple[int, Words]]:
        return [record async for chunk in self.log.replay() for record in chunk]

    def close(self) -> None:
        self.partition.log.close(self.ports.clock.wall_ms())


def on_bench(script: Callable[[LogBench], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def play(simulation: Simulation) -> None:
        bench = LogBench(simulation, **options)
        await script(bench)
        bench.close()

    Simulation(seed=1).run(play)


@pytest.mark.parametrize("compression", list(Compression))
def test_decision_is_one_batch_and_replay_yields_the_newest_per_key(compression: Compression) -> None:
    async def script(bench: LogBench) -> None:
        bench.log.append([[("a", "1"), ("b", "1")], [("a", "2")], [("c", "1"), ("c", None)]])
        batches = list(iterate_batches(bench.partition.log.read_bytes(0, 10_000)))
        assert [(header.base_offset, header.records_count) for header, _ in batches] == [(0, 2), (2, 1), (3, 2)]
        assert {header.partition_leader_epoch for header, _ in batches} == {3}
        assert {header.compression for header, _ in batches} == {compression}
        assert bench.log.end_offset == 5
        assert await bench.replayed() == [(1, ("b", "1")), (2, ("a", "2"))]

    on_bench(script, compression=compression)


def test_replay_reads_many_chunks_and_skips_control_records() -> None:
    async def script(bench: LogBench) -> None:
        for number in range(200):
            bench.log.append([[(f"key-{number % 7}", str(number))]])
        control = memoryview(build_control_batch([(ControlType.LEADER_CHANGE, b"")], timestamp_ms=1))
        bench.partition.append(control, read_header(control), 1)
        bench.log.append([[("foreign", "!")]])
        assert await bench.replayed() == [(number, (f"key-{number % 7}", str(number))) for number in range(193, 200)]

    on_bench(script)


class TickingClock:
    """Advances at each reading."""

    def __init__(self) -> None:
        self._now_ms = 0.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> float:
        self._now_ms += 0.2
        return self._now_ms


class ImmediateExecutor:
    """Runs every job at once."""

    async def run(self, work: Callable[..., Any], *arguments: object) -> Any:
        return work(*arguments)

    async def work_on_files(self, work: Callable[..., Any], job: Any, *, is_urgent: bool = False) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


def test_replay_yields_to_other_tasks() -> None:
    async def script(bench: LogBench) -> None:
        bench.log = PartitionLog(
            bench.partition, WordCoding(), TickingClock(), ImmediateExecutor(), condensed_from_bytes=1 << 60
        )
        bench.log.append([[(str(number), "value")] for number in range(5_000)])
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert len(await bench.replayed()) == 5_000
        task.cancel()
        assert turns > 20

    on_bench(script)


def test_commits_are_reported_once_they_are_visible() -> None:
    async def script(bench: LogBench) -> None:
        commits: list[int] = []
        bench.log.watch(commits.append)
        bench.log.append([[("a", "1")], [("b", "1")]])
        assert commits == []
        assert bench.log.high_watermark == 0
        assert bench.syncs, "a topic that syncs every message"
        bench.partition.committed_to(2, 100)
        assert commits == [2]
        bench.log.close()
        bench.partition.committed_to(2, 0)
        assert commits == [2]

    on_bench(script, flush_messages=1)


def test_append_to_a_deleted_partition_is_rejected() -> None:
    async def script(bench: LogBench) -> None:
        bench.partition.close()
        with pytest.raises(NotLeaderOrFollower):
            bench.log.append([[("a", "1")]])

    on_bench(script)
