"""Verification of segments: every flipped bit is found, and nothing else is reported."""

import random
import struct

import pytest
from storage_bench import FOLDER, Bench

from moldau.storage.batch_verifier import BatchVerifier
from moldau.storage.names import INDEX, LOG, TIME_INDEX, path_of
from moldau.storage.scrub import WHOLE, ScrubJob, ScrubResult, compute_indexes, verify_slice
from moldau.storage.segment import Segment

BATCHES = 40
LENGTH_POSITION, EPOCH_POSITION, MAGIC_POSITION = 8, 12, 16


def filled() -> Bench:
    """A closed segment with batches of three records, in two leader epochs, and an active one."""
    bench = Bench(index_interval_bytes=300)
    for number in range(BATCHES):
        epoch = 3 if number < BATCHES // 2 else 5
        bench.append(*(b"%d" % number * 10 for _ in range(3)), epoch=epoch, timestamp=bench.now_ms + number)
    bench.log.roll(bench.now_ms)
    bench.append(b"active", epoch=5)
    return bench


def first_segment(bench: Bench) -> Segment:
    segment = bench.log.segment_after(-1)
    assert segment is not None
    return segment


def job(bench: Bench, bytes_max: int = WHOLE) -> ScrubJob:
    verifier = bench.log.verifier(first_segment(bench))
    assert verifier is not None
    return ScrubJob(FOLDER, verifier, bytes_max)


def scrub(bench: Bench, bytes_max: int = WHOLE) -> ScrubResult:
    begun = job(bench, bytes_max)
    result = verify_slice(bench.mounted, begun)
    has_invalid_index = result.has_invalid_index
    while not result.verifier.is_done:
        result = verify_slice(bench.mounted, ScrubJob(FOLDER, result.verifier, bytes_max))
        has_invalid_index = has_invalid_index or result.has_invalid_index
    return result._replace(has_invalid_index=has_invalid_index)


def batch_positions(bench: Bench) -> list[int]:
    verifier = job(bench).verifier
    data = bench.mounted.read(path_of(FOLDER, 0, LOG))
    return [position for position, _ in verifier.verify(data, 0)]


@pytest.mark.parametrize("bytes_max", [1, 700, WHOLE])
def test_intact_segment_has_no_corrupt_range(bytes_max: int) -> None:
    result = scrub(filled(), bytes_max)
    assert (result.verifier.corrupt, result.has_invalid_index) == ([], False)
    assert result.verifier.next_offset == BATCHES * 3


@pytest.mark.proves("S10")
@pytest.mark.parametrize("bytes_max", [700, WHOLE])
def test_every_flipped_bit_of_a_log_file_is_found_in_its_batch(bytes_max: int) -> None:
    """All bits of all headers of some batches, and random bits elsewhere."""
    bench = filled()
    rng = random.Random(7)
    positions = batch_positions(bench)
    path = path_of(FOLDER, 0, LOG)
    for number in (1, 7, 18, 22, BATCHES - 2):
        begin, end = positions[number], [*positions, bench.mounted.size(path)][number + 1]
        header_bits = [(begin + byte, bit) for byte in range(61) for bit in range(8)]
        record_bits = [(rng.randrange(begin + 61, end), rng.randrange(8)) for _ in range(20)]
        for position, bit in header_bits + record_bits:
            bench.disk.flip_bit(path, position, bit)
            found = scrub(bench, bytes_max).verifier.corrupt
            bench.disk.flip_bit(path, position, bit)
            assert [(each.offset, each.end_offset) for each in found] == [(number * 3, number * 3 + 3)], (
                number,
                position - begin,
                bit,
            )
            assert (found[0].position, found[0].end_position) == (begin, end)


@pytest.mark.parametrize("number", [0, BATCHES - 1])
def test_flipped_bits_at_the_ends_of_a_segment_are_found(number: int) -> None:
    """Beside no batch on one side, most flips of the leader epoch still contradict the epochs of the log."""
    bench = filled()
    path = path_of(FOLDER, 0, LOG)
    begin = batch_positions(bench)[number]
    for byte in range(61):
        for bit in range(8):
            bench.disk.flip_bit(path, begin + byte, bit)
            found = scrub(bench).verifier.corrupt
            bench.disk.flip_bit(path, begin + byte, bit)
            assert [(each.offset, each.end_offset) for each in found] == [(number * 3, number * 3 + 3)], (byte, bit)


@pytest.mark.proves("S10")
def test_batches_beside_several_flipped_bits_stay_valid() -> None:
    bench = filled()
    path, size = path_of(FOLDER, 0, LOG), bench.mounted.size(path_of(FOLDER, 0, LOG))
    positions = [*batch_positions(bench), size]
    rng = random.Random(11)
    for _ in range(200):
        flips = [(rng.randrange(size), rng.randrange(8)) for _ in range(rng.randrange(1, 6))]
        for position, bit in flips:
            bench.disk.flip_bit(path, position, bit)
        hit = {next(n for n in range(BATCHES) if positions[n + 1] > position) for position, _ in set(flips)}
        found = scrub(bench).verifier.corrupt
        for position, bit in flips:
            bench.disk.flip_bit(path, position, bit)
        reported = {offset // 3 for each in found for offset in range(each.offset, each.end_offset)}
        assert reported == hit, (flips, found)


@pytest.mark.proves("S10")
@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
def test_every_flipped_bit_of_an_index_is_found_and_the_index_restored(suffix: str) -> None:
    bench = filled()
    path = path_of(FOLDER, 0, suffix)
    size = bench.mounted.size(path)
    assert size > 100
    missed = []
    for position in range(size):
        for bit in range(8):
            bench.disk.flip_bit(path, position, bit)
            if not scrub(bench, 700).has_invalid_index:
                missed.append((position, bit))
            bench.disk.flip_bit(path, position, bit)
    entry_bytes, last_of_offset = (8, 3) if suffix == INDEX else (12, 11)
    assert all(position % entry_bytes == last_of_offset for position, _ in missed)  # another offset of the same batch
    bench.disk.flip_bit(path, 5, 1)
    bench.log.restore_indexes(first_segment(bench), compute_indexes(bench.mounted, job(bench)))
    assert not scrub(bench).has_invalid_index
    assert len(bench.values()) == BATCHES * 3 + 1


def test_index_of_a_corrupt_segment_is_restored_without_the_corrupt_batch() -> None:
    bench = filled()
    (indexed,) = struct.unpack_from(">i", bench.mounted.read(path_of(FOLDER, 0, INDEX)), 5 * 8 + 4)
    bench.disk.flip_bit(path_of(FOLDER, 0, LOG), indexed + 16, 5)
    assert scrub(bench).has_invalid_index
    bench.log.restore_indexes(first_segment(bench), compute_indexes(bench.mounted, job(bench)))
    result = scrub(bench)
    assert (len(result.verifier.corrupt), result.has_invalid_index) == (1, False)


def test_gaps_left_by_compaction_are_not_corrupt() -> None:
    bench = filled()
    path = path_of(FOLDER, 0, LOG)
    data = bench.mounted.read(path)
    positions = [*batch_positions(bench), len(data)]
    kept = b"".join(data[positions[n] : positions[n + 1]] for n in range(0, BATCHES, 3))
    verifier = BatchVerifier(0, BATCHES * 3, len(kept), frozenset({3, 5}))
    assert len(verifier.verify(kept, 0)) == len(range(0, BATCHES, 3))
    assert (verifier.is_done, verifier.corrupt) == (True, [])
