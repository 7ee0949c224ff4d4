"""Compaction of logs with transactions: a read-committed reader finds the same table before and after."""

import random
from collections.abc import Iterator
from functools import partial

import pytest
from compacted_bench import CompactedBench

from moldau.model.units import DAY_MS
from moldau.records.record import Record, iterate_batches, iterate_records

PRODUCERS = (1, 2, 3)
KEYS = tuple(b"key-%d" % number for number in range(6))
STEPS = 160


def committed(bench: CompactedBench) -> Iterator[Record]:
    """Return what a read-committed consumer shows: without aborted records and markers."""
    log = bench.log
    offset, until = log.start_offset, log.last_stable_offset(log.end_offset)
    while (read := log.read(offset, 700, until_offset=until)) is not None:
        aborted = bench.verified(partial(log.aborted_in, read, offset, until))
        upcoming = sorted((each.first_offset, each.producer_id) for each in aborted)
        dropped: set[int] = set()
        for header, batch in iterate_batches(read.read()):
            while upcoming and upcoming[0][0] <= header.last_offset:
                dropped.add(upcoming.pop(0)[1])
            if header.is_control:
                dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                yield from iterate_records(batch)
            offset = header.next_offset


class RandomRun:
    """One seed's run: puts and deletes, in transactions and outside."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bench = CompactedBench(segment_bytes=self.chance.choice([1024, 2048]))
        self.written: list[tuple[int, bytes, bytes | None, int | None]] = []  # offset, key, value, producer while open
        self.opened: dict[int, int] = {}

    def run(self) -> None:
        for number in range(STEPS):
            self.step(number)
            if number % 10 == 9:
                self.bench.compact()
                self.bench.now_ms += self.chance.choice([0, 0, DAY_MS * 2])
                if self.chance.random() < 0.3:
                    self.bench.restart()
                assert self.table() == self.expected()

    def step(self, number: int) -> None:
        producer_id, key = self.chance.choice(PRODUCERS), self.chance.choice(KEYS)
        value = self.chance.choice([None, b"%d" % number, b"%d" % number, b"%d" % number])
        kind = self.chance.randrange(6)
        if kind == 0:
            self.written.append((self.bench.put((key, value)), key, value, None))
        elif kind <= 3:
            self.put(producer_id, key, value)
        else:
            self.end(producer_id, is_commit=kind == 4)

    def put(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        known = self.bench.log.producers.by_id.get(producer_id)
        sequence = 0 if known is None else known.next_sequence
        offset = self.bench.put(
            (key, value), producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        self.opened.setdefault(producer_id, offset)
        self.written.append((offset, key, value, producer_id))

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        self.bench.end_transaction(producer_id, is_commit=is_commit)
        self.opened.pop(producer_id, None)
        self.written = [
            (*each[:3], None) if each[3] == producer_id else each
            for each in self.written
            if is_commit or each[3] != producer_id
        ]

    def expected(self) -> dict[bytes, bytes]:
        stable = min(self.opened.values(), default=self.bench.log.end_offset)
        newest = {key: value for offset, key, value, owner in self.written if owner is None and offset < stable}
        return {key: value for key, value in newest.items() if value is not None}

    def table(self) -> dict[bytes | None, bytes]:
        newest = {record.key: record.value for record in committed(self.bench)}
        return {key: value for key, value in newest.items() if value is not None}


@pytest.mark.proves("C7")
@pytest.mark.parametrize("seed", range(10))
def test_committed_table_survives_compaction(seed: int) -> None:
    RandomRun(seed).run()


@pytest.mark.proves("C7")
def test_aborted_transaction_behind_an_open_one_survives_compaction() -> None:
    bench = CompactedBench()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.put((b"k", b"committed"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    bench.put((b"k", b"aborted"), producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True)
    bench.end_transaction(2, is_commit=False)
    known = bench.aborted_transactions(0, bench.log.end_offset)
    assert bench.compact() is not None, "the part before the open transaction"
    assert bench.aborted_transactions(0, bench.log.end_offset) == known
    assert bench.table()[b"k"] == b"aborted", "nothing behind it was touched"
    bench.end_transaction(1, is_commit=True)
    bench.put((b"b", b"1"))
    assert bench.compact() is not None
    assert {record.key: record.value for record in committed(bench)} == {
        b"a": b"2",
        b"k": b"committed",
        b"b": b"1",
    }
