"""Transactions in a log against a list of writes: random runs, on a leader and on a follower."""

import random
from typing import Any, NamedTuple

import pytest
from storage_bench import FOLDER, Bench

from moldau.records.control import build_transaction_marker
from moldau.storage.files import sync_directory
from moldau.testing.disk import SimulatedDisk

STEPS = 120
PRODUCERS = (1, 2, 3)
LOST = (".index", ".timeindex", ".txnindex")


class Written(NamedTuple):
    """One batch of one record."""

    offset: int
    producer_id: int  # -1 for a record outside of transactions
    is_commit: bool | None = None  # of a marker


class RandomRun:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.disk.prepare_folder(FOLDER)
        sizes: dict[str, Any] = {"segment_bytes": self.chance.choice([1024, 3000]), "index_interval_bytes": 200}
        self.bench = Bench(self.disk, **sizes)
        self.follower = Bench(**sizes)
        self.written: list[Written] = []
        self.steps = [
            *[self.send] * 8,
            *[self.end] * 5,
            self.send_plain,
            self.roll,
            self.truncate,
            self.delete_records,
            self.restart,
            self.kill,
            self.lose_indexes,
            self.flush,
            self.lose_power,
            self.follow,
        ]

    def run(self) -> None:
        for _ in range(STEPS):
            self.chance.choice(self.steps)()
            self.compare(self.bench)
        self.follow()
        self.compare(self.follower)
        assert self.follower.aborted_transactions(0, self.end_offset) == self.bench.aborted_transactions(
            0, self.end_offset
        )

    @property
    def end_offset(self) -> int:
        return self.bench.log.end_offset

    def send(self) -> None:
        producer_id = self.chance.choice(PRODUCERS)
        known = self.bench.log.producers.by_id.get(producer_id)
        sequence = 0 if known is None else known.next_sequence
        self.written.append(Written(self.end_offset, producer_id))
        self.bench.append(
            b"x" * self.chance.randrange(12),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )

    def send_plain(self) -> None:
        self.written.append(Written(self.end_offset, -1))
        self.bench.append(b"plain")

    def end(self) -> None:
        producer_id, is_commit = self.chance.choice(PRODUCERS), self.chance.random() < 0.5
        self.written.append(Written(self.end_offset, producer_id, is_commit))
        self.bench.append_batch(
            build_transaction_marker(
                is_commit=is_commit,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=self.bench.now_ms,
            )
        )

    def roll(self) -> None:
        self.bench.log.roll(self.bench.now_ms)

    def truncate(self) -> None:
        offset = self.chance.randrange(max(self.bench.log.start_offset, self.end_offset - 5), self.end_offset + 1)
        self.bench.log.truncate_to(offset)
        self.flush()  # else a power loss could restore truncated records
        self.written = [each for each in self.written if each.offset < offset]
        if self.follower.log.end_offset > offset:
            self.follower.log.truncate_to(offset)

    def delete_records(self) -> None:
        if self.chance.random() < 0.2:
            self.follow()  # later it could not
            self.bench.log.advance_start_offset(self.chance.randrange(self.bench.log.start_offset, self.end_offset + 1))

    def restart(self) -> None:
        self.bench.restart(log_start_offset=self.bench.log.start_offset)

    def kill(self) -> None:
        recovery_point, start_offset = self.bench.log.recovery_point, self.bench.log.start_offset
        self.bench.kill(recovery_point=recovery_point, log_start_offset=start_offset)

    def flush(self) -> None:
        self.bench.log.flush(self.bench.now_ms)

    def lose_power(self) -> None:
        """Drop unsynced data, from a random offset on."""
        recovery_point = self.bench.log.recovery_point
        start_offset = min(self.bench.log.start_offset, recovery_point)
        self.disk.power_loss()
        self.bench.open(recovery_point=recovery_point, log_start_offset=start_offset, has_lost_power=True)
        assert self.end_offset >= recovery_point
        self.written = [each for each in self.written if each.offset < self.end_offset]
        if self.follower.log.end_offset > self.end_offset:
            self.follower.log.truncate_to(self.end_offset)

    def lose_indexes(self) -> None:
        start_offset = self.bench.log.start_offset
        self.bench.log.close(self.bench.now_ms)
        for name in self.bench.names():
            if name.endswith(LOST):
                self.bench.mounted.unlink(f"{FOLDER}/{name}")
        sync_directory(self.bench.mounted, FOLDER)
        self.bench.open(is_clean=True, log_start_offset=start_offset)

    def follow(self) -> None:
        log = self.follower.log
        while log.end_offset < self.end_offset:
            log.append_as_follower(self.bench.log.read_bytes(log.end_offset, 2048), self.follower.now_ms)

    def compare(self, bench: Bench) -> None:
        log, end_offset = bench.log, self.end_offset
        opened, aborted = self.expected()
        first_open = min(opened.values(), default=end_offset)
        assert log.last_stable_offset(end_offset) == max(first_open, log.start_offset)
        entries = bench.aborted_transactions(log.start_offset, end_offset)
        found = [(each.producer_id, each.first_offset, each.last_offset) for each in entries]
        assert found == [each for each in aborted if each[2] >= log.start_offset]

    def expected(self) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Return open transactions with their first offsets, and aborted ones with both their offsets."""
        opened: dict[int, int] = {}
        aborted = []
        for offset, producer_id, is_commit in self.written:
            if is_commit is None and producer_id >= 0:
                opened.setdefault(producer_id, offset)
            elif producer_id in opened:
                first_offset = opened.pop(producer_id)
                if not is_commit:
                    aborted.append((producer_id, first_offset, offset))
        return opened, aborted


@pytest.mark.proves("C7")
@pytest.mark.parametrize("seed", range(12))
def test_stable_offset_and_aborted_transactions_match_the_log(seed: int) -> None:
    RandomRun(seed).run()
