"""A log against a simple model: random operations, compared after every step."""

import random
from dataclasses import dataclass, field

import pytest
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.records.builder import build_batch
from moldau.testing.disk import SimulatedDisk

STEPS = 150


@dataclass
class Model:
    """The expected contents of the log."""

    values: dict[int, bytes] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)  # by offset
    start: int = 0
    end: int = 0
    ghosts: dict[int, set[bytes]] = field(default_factory=dict)  # truncated, but a power loss may restore them
    synced: int = 0
    checkpoint: int = 0  # the recovery point for the next opening
    epoch: int = 0


class RandomRun:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.disk.prepare_folder(FOLDER)
        self.bench = Bench(
            self.disk,
            segment_bytes=self.chance.choice([1024, 2048, 5000]),
            index_interval_bytes=self.chance.choice([0, 200, 4096]),
            retention_bytes=self.chance.choice([-1, 6000]),
            preallocate=self.chance.random() < 0.3,
        )
        self.model = Model()
        self.steps = [
            *[self.append] * 12,
            *[self.follow] * 4,
            self.flush,
            self.roll,
            self.truncate,
            self.delete_records,
            self.retain,
            self.new_epoch,
            self.restart,
            self.kill,
            self.lose_power,
        ]

    def run(self) -> None:
        for _ in range(STEPS):
            self.chance.choice(self.steps)()
            self.compare()

    def append(self) -> None:
        count = self.chance.randrange(1, 4)
        values = [self.chance.randbytes(self.chance.randrange(120)) for _ in range(count)]
        appended = self.bench.append(
            *values, epoch=self.model.epoch, producer_id=7, producer_epoch=0, base_sequence=self.model.end
        )
        assert appended.base_offset == self.model.end
        self.note(values)

    def follow(self) -> None:
        batches = b""
        for _ in range(self.chance.randrange(1, 4)):
            values = [self.chance.randbytes(self.chance.randrange(120)) for _ in range(self.chance.randrange(1, 4))]
            batches += build_batch(
                [(NOW_MS, None, value, ()) for value in values],
                base_offset=self.model.end,
                leader_epoch=self.model.epoch,
                producer_id=7,
                producer_epoch=0,
                base_sequence=self.model.end,
            )
            self.note(values)
        assert self.bench.log.append_as_follower(batches, NOW_MS) == self.model.end

    def note(self, values: list[bytes]) -> None:
        for value in values:
            self.model.values[self.model.end] = value
            self.model.epochs[self.model.end] = self.model.epoch
            self.model.end += 1

    def flush(self) -> None:
        self.bench.log.flush(NOW_MS)
        self.everything_is_synced()

    def everything_is_synced(self) -> None:
        self.model.synced = self.model.end
        self.model.ghosts.clear()
        self.model.checkpoint = self.bench.log.recovery_point

    def roll(self) -> None:
        self.bench.log.roll(NOW_MS)

    def truncate(self) -> None:
        if self.chance.random() < 0.5:
            return
        target = self.chance.randrange(max(self.model.start, self.model.end - 15), self.model.end + 1)
        self.bench.log.truncate_to(target)
        self.cut(self.bench.log.end_offset)
        assert self.model.end <= target
        self.model.checkpoint = min(self.model.checkpoint, self.bench.log.recovery_point)

    def cut(self, end: int) -> None:
        model = self.model
        for offset in range(end, model.end):
            model.ghosts.setdefault(offset, set()).add(model.values[offset])
        model.values = {offset: value for offset, value in model.values.items() if offset < end}
        model.epochs = {offset: epoch for offset, epoch in model.epochs.items() if offset < end}
        model.end = end
        model.start = min(model.start, end)
        model.synced = min(model.synced, end)

    def delete_records(self) -> None:
        self.model.start = self.chance.randrange(self.model.start, self.model.end + 1)
        self.bench.log.advance_start_offset(self.model.start)

    def retain(self) -> None:
        for path in self.bench.log.apply_retention(NOW_MS):
            self.bench.mounted.unlink(path)
        assert self.bench.log.start_offset >= self.model.start
        self.model.start = self.bench.log.start_offset

    def new_epoch(self) -> None:
        self.model.epoch += self.chance.randrange(1, 3)

    def restart(self) -> None:
        self.bench.restart(log_start_offset=self.model.start)
        self.everything_is_synced()

    def kill(self) -> None:
        self.bench.kill(recovery_point=self.model.checkpoint, log_start_offset=self.model.start)

    def lose_power(self) -> None:
        self.disk.power_loss()
        self.bench.open(recovery_point=self.model.checkpoint, log_start_offset=self.model.start, has_lost_power=True)
        log, model = self.bench.log, self.model
        assert log.end_offset >= model.synced
        found = {record.offset: record.value or b"" for record in self.bench.records()}
        for offset, value in found.items():
            allowed = {model.values.get(offset)} | (
                model.ghosts.get(offset, set()) if offset >= model.synced else set()
            )
            assert value in allowed
        assert set(range(log.start_offset, log.end_offset)) == set(found)
        kept = {offset: value for offset, value in model.values.items() if offset < log.start_offset}
        model.values = {**kept, **found}
        model.epochs = {offset: log.epochs.epoch_at(offset) for offset in model.values}
        model.start, model.end = log.start_offset, log.end_offset

    def compare(self) -> None:
        log, model = self.bench.log, self.model
        assert (log.start_offset, log.end_offset) == (model.start, model.end)
        expected = {offset: value for offset, value in model.values.items() if offset >= model.start}
        assert {record.offset: record.value for record in self.bench.records()} == expected
        if model.start < model.end:
            offset = self.chance.randrange(model.start, model.end)
            until = self.chance.randrange(offset, model.end + 1)
            piece = log.read(offset, self.chance.randrange(1, 2000), until_offset=until)
            assert piece is None or len(piece.read()) == piece.length
            assert log.epochs.epoch_at(offset) == model.epochs[offset]
            if model.values:
                assert log.producers.by_id[7].next_sequence == model.end  # one sequence for each offset


@pytest.mark.proves("S1")
@pytest.mark.proves("S8")
@pytest.mark.parametrize("seed", range(60))
def test_random_operations_on_log_match_the_model(seed: int) -> None:
    RandomRun(seed).run()
