"""Offsets with and without transactions: the replayed machine equals the log, compacted or not."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.groups.record_serde import GroupCoding
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.meters import TrafficMeter
from moldau.machines.groups import GroupSettings, GroupsMachine, Record
from moldau.machines.groups.records import PendingOffset, TransactionEnded, offset_record
from moldau.model.ids import TopicId, TopicPartition
from moldau.model.units import KiB
from moldau.records.record import iterate_batches
from moldau.storage.aborted_transactions import UnverifiedTransactionIndex
from moldau.storage.compaction import compact
from moldau.storage.log import Log
from moldau.storage.settings import LogSettings
from moldau.wire import messages
from moldau_dev.simulation.simulation import Simulation

PRODUCERS = (1, 2, 3)
PARTITIONS = (0, 1, 2)
STEPS = 200


class GroupBench:
    """A machine whose decisions are written, and a simple record of all commits in log order."""

    def __init__(self, simulation: Simulation) -> None:
        ports = simulation.host("node")._ports()
        self.disk = ports.disk
        settings = LogSettings(cleanup_policy=("compact",), segment_bytes=2 * KiB, min_cleanable_dirty_ratio=0.0)
        self.now_ms = ports.clock.wall_ms()
        log = Log.open(ports.disk, "/data/t-0", settings, now_ms=self.now_ms)
        self.partition = Partition(
            TopicPartition("t", 0), TopicId(bytes(16)), log, 0, TrafficMeter(), lambda _: None, lambda *_: None
        )
        coding = GroupCoding()
        self.log, self.condensed_log = (
            PartitionLog[Record](
                self.partition,
                coding,
                ports.clock,
                ports.executor,
                read_bytes=512,
                batches=coding,
                condensed_from_bytes=condensed_from_bytes,
            )
            for condensed_from_bytes in (1 << 60, 1)
        )
        self.machine = GroupsMachine(GroupSettings())
        self.commits: list[tuple[int | None, int, int | None]] = []  # producer while open, partition, offset
        self.cleaned_offset = 0

    def write(self, *records: Record) -> None:
        offset = self.log.end_offset
        self.log.append([records])
        for position, record in enumerate(records, offset):
            self.machine.apply(record, position)

    def commit(self, partition: int, offset: int | None) -> None:
        value = None if offset is None else _value(offset)
        self.write(offset_record("g", "t", partition, value))
        self.commits.append((None, partition, offset))

    def commit_in_transaction(self, producer_id: int, places: Sequence[int], offset: int) -> None:
        producers = self.partition.log.producers
        if not producers.is_in_transaction(producer_id, 0):
            producers.verifications.complete(producer_id, producers.verifications.seek(producer_id, 0, -1, 0))
        self.write(*(PendingOffset(producer_id, 0, _key(place), _value(offset)) for place in places))
        self.commits += [(producer_id, place, offset) for place in places]

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        self.write(TransactionEnded(producer_id, 0, 0, is_commit))
        if is_commit:
            self.commits = [(None if each[0] == producer_id else each[0], *each[1:]) for each in self.commits]
        else:
            self.commits = [each for each in self.commits if each[0] != producer_id]

    def expected(self) -> dict[int, int]:
        newest = {place: offset for producer_id, place, offset in self.commits if producer_id is None}
        return {place: offset for place, offset in newest.items() if offset is not None}

    def is_pending(self, place: int) -> bool:
        """Return whether the last commit of it is in an open transaction that may still be committed."""
        owners = [producer_id for producer_id, each, _ in self.commits if each == place]
        settled = max((index for index, owner in enumerate(owners) if owner is None), default=-1)
        return settled < len(owners) - 1

    async def replayed(self, log: PartitionLog[Record]) -> GroupsMachine:
        machine = GroupsMachine(GroupSettings())
        async for chunk in log.replay():
            for offset, record in chunk:
                machine.apply(record, offset)
        return machine

    def compact(self) -> None:
        log = self.partition.log
        log.roll(self.now_ms)
        try:
            job = log.compaction_job(self.cleaned_offset, log.end_offset, self.now_ms)
        except UnverifiedTransactionIndex as unverified:
            log.restore_transactions(self.disk, [unverified.segment.base_offset])
            self.compact()
            return
        if job is not None:
            result = compact(self.disk, job)
            for path in log.replace_segments(result):
                self.disk.unlink(path)
            self.cleaned_offset = result.cleaned_offset


def _key(place: int) -> messages.OffsetCommitKey:
    return messages.OffsetCommitKey(group="g", topic="t", partition=place)


def _value(offset: int) -> messages.OffsetCommitValue:
    return messages.OffsetCommitValue(offset=offset, leader_epoch=0, metadata="", commit_timestamp=1)


def _offsets(machine: GroupsMachine) -> dict[int, int]:
    return {place: value.offset for place, value in machine.state.offsets.get("g", {}).get("t", {}).items()}


def _step(bench: GroupBench, chance: random.Random, number: int) -> None:
    producer_id, place = chance.choice(PRODUCERS), chance.choice(PARTITIONS)
    match chance.randrange(8):
        case 0:
            bench.commit(place, number)
        case 1:
            bench.commit(place, None)
        case 2 | 3 | 4:
            bench.commit_in_transaction(producer_id, chance.sample(PARTITIONS, chance.choice((1, 2))), number)
        case 5 | 6:
            bench.end(producer_id, is_commit=True)
        case 7:
            bench.end(producer_id, is_commit=False)


@pytest.mark.proves("P3")
@pytest.mark.parametrize("seed", range(8))
def test_last_committed_offset_in_the_log_counts(seed: int) -> None:
    async def play(simulation: Simulation) -> None:
        chance = random.Random(seed)
        bench = GroupBench(simulation)
        for number in range(STEPS):
            _step(bench, chance, number)
            assert _offsets(bench.machine) == bench.expected()
            for place in PARTITIONS:
                assert bench.machine.state.pending.has("g", "t", place) == bench.is_pending(place)
            if number % 7 == 6:
                assert (await bench.replayed(bench.log)).state == bench.machine.state
                assert (await bench.replayed(bench.condensed_log)).state == bench.machine.state
                bench.compact()
                assert (await bench.replayed(bench.log)).state == bench.machine.state
                assert (await bench.replayed(bench.condensed_log)).state == bench.machine.state
            await asyncio.sleep(0)
        for producer_id in PRODUCERS:
            bench.end(producer_id, is_commit=True)
        assert not bench.machine.state.pending
        assert _offsets(bench.machine) == bench.expected()
        bench.partition.log.close(bench.now_ms)

    Simulation(seed=seed).run(play)


def test_batches_equal_those_of_kafka() -> None:
    async def play(simulation: Simulation) -> None:
        bench = GroupBench(simulation)
        bench.commit_in_transaction(1, (0, 1), 5)
        bench.end(1, is_commit=True)
        first, marker = (header for header, _ in _batches(bench))
        assert (first.is_transactional, first.is_control, first.producer_id, first.base_sequence) == (
            True,
            False,
            1,
            -1,
        )
        assert (first.records_count, marker.is_transactional, marker.is_control) == (2, True, True)
        assert (marker.producer_id, marker.producer_epoch, marker.records_count) == (1, 0, 1)
        bench.partition.log.close(bench.now_ms)

    Simulation(seed=1).run(play)


def _batches(bench: GroupBench) -> Any:
    return iterate_batches(bench.partition.log.read_bytes(0, 10_000))
