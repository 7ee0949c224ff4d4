"""Detection of corruption while a log is in use."""

import pytest
from storage_bench import FOLDER, Bench

from moldau.model.units import KiB
from moldau.storage.corrupt_range import find_corruption_at

LOG = f"{FOLDER}/00000000000000000000.log"


def filled(segment_bytes: int) -> Bench:
    bench = Bench(segment_bytes=segment_bytes, index_interval_bytes=200)
    for number in range(20):
        bench.append(b"%d" % number * 40, b"another")
    return bench


@pytest.mark.parametrize("segment_bytes", [1 * KiB, 64 * KiB])
def test_valid_batches_are_not_reported_as_corrupt(segment_bytes: int) -> None:
    bench = filled(segment_bytes)
    assert not any(find_corruption_at(bench.log, offset) for offset in range(bench.log.end_offset))


@pytest.mark.proves("H3")
@pytest.mark.parametrize("segment_bytes", [1 * KiB, 64 * KiB])
def test_batch_with_a_wrong_checksum_is_corrupt_in_its_whole_range(segment_bytes: int) -> None:
    bench = filled(segment_bytes)
    first = bench.log.read(4, 1)
    assert first is not None
    bench.disk.flip_bit(LOG, first.position + 70)
    for offset in (4, 5):
        damage = find_corruption_at(bench.log, offset)
        assert damage is not None
        assert (damage.offset, damage.end_offset) == (4, 6)
    assert find_corruption_at(bench.log, 3) is None
    assert find_corruption_at(bench.log, 6) is None


@pytest.mark.parametrize("segment_bytes", [1 * KiB, 64 * KiB])
def test_batch_without_a_valid_header_is_corrupt(segment_bytes: int) -> None:
    bench = filled(segment_bytes)
    first = bench.log.read(4, 1)
    assert first is not None
    bench.disk.flip_bit(LOG, first.position + 16)  # the magic byte
    damage = find_corruption_at(bench.log, 4)
    assert damage is not None
    assert damage.offset == 4
    assert str(damage).endswith("offset 4")


@pytest.mark.parametrize("segment_bytes", [1 * KiB, 64 * KiB])
def test_batch_with_a_wrong_length_is_corrupt(segment_bytes: int) -> None:
    bench = filled(segment_bytes)
    first = bench.log.read(4, 1)
    assert first is not None
    bench.disk.flip_bit(LOG, first.position + 10)
    assert find_corruption_at(bench.log, 4) is not None
