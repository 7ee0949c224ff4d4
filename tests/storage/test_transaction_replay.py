"""Transaction indexes of an earlier run: every flipped bit is found, and the index is computed from the log again."""

import pytest
from storage_bench import FOLDER, Bench
from test_log_transactions import mark, send

from moldau.storage.aborted_transactions import UnverifiedTransactionIndex
from moldau.storage.names import LOG, TRANSACTION_INDEX, path_of
from moldau.storage.segment import Segment
from moldau.storage.transaction_index import ENTRY_BYTES, AbortedTransaction
from moldau.storage.transaction_replay import replay_transactions

pytestmark = pytest.mark.proves("S10")


def filled() -> Bench:
    """Three segments with aborted transactions that overlap each other and the ends of segments."""
    bench = Bench()
    for round_ in range(3):
        for producer_id in (1, 2, 3):
            send(bench, round_, producer_id=producer_id)
        mark(bench, is_commit=False, producer_id=1)
        mark(bench, is_commit=round_ == 1, producer_id=3)
        if round_ < 2:
            bench.log.roll(bench.now_ms)
        mark(bench, is_commit=False, producer_id=2)
    return bench


def everything(bench: Bench) -> list[AbortedTransaction]:
    return bench.aborted_transactions(0, bench.log.end_offset)


def segment_at(bench: Bench, number: int) -> Segment:
    segment = bench.log.segment_of(bench.log.segment_base_offsets[number])
    assert segment is not None
    return segment


@pytest.mark.parametrize("has_snapshots", [True, False], ids=["with snapshots", "without"])
@pytest.mark.parametrize("number", range(3))
def test_every_flipped_bit_of_a_transaction_index_is_found(number: int, has_snapshots: bool) -> None:
    bench = filled()
    known = everything(bench)
    path = path_of(FOLDER, bench.log.segment_base_offsets[number], TRANSACTION_INDEX)
    bench.log.close(bench.now_ms)
    if not has_snapshots:
        for name in bench.names():
            if name.endswith(".snapshot"):
                bench.mounted.unlink(f"{FOLDER}/{name}")
    size = bench.mounted.size(path)
    assert size >= 2 * ENTRY_BYTES
    intact = bench.mounted.read(path)
    for position in range(size):
        for bit in (position % 8, (position + 3) % 8):
            bench.disk.flip_bit(path, position, bit)
            bench.open(is_clean=True)
            assert everything(bench) == known, (position, bit)
            assert bench.mounted.read(path) == intact
            bench.log.abandon()


def test_valid_index_of_an_earlier_run_is_verified_once() -> None:
    bench = filled()
    known = everything(bench)
    bench.restart()
    with pytest.raises(UnverifiedTransactionIndex):
        bench.log.aborted_transactions(0, bench.log.end_offset)
    assert everything(bench) == known
    for number in range(3):
        segment_at(bench, number).aborted.release()
    assert bench.log.aborted_transactions(0, bench.log.end_offset) == known


def test_bit_flipped_after_the_verification_is_found_when_the_index_is_read_again() -> None:
    bench = filled()
    known = everything(bench)
    segment = segment_at(bench, 0)
    segment.release()
    bench.disk.flip_bit(segment.aborted.path, 15)
    with pytest.raises(UnverifiedTransactionIndex):
        bench.log.aborted_transactions(0, bench.log.end_offset)
    assert everything(bench) == known


@pytest.mark.parametrize("is_valid", [True, False], ids=["valid", "corrupt"])
def test_transactions_aborted_during_the_verification_are_kept(is_valid: bool) -> None:
    bench = filled()
    bench.log.close(bench.now_ms)
    segment = segment_at(bench, 2)
    if not is_valid:
        bench.disk.flip_bit(segment.aborted.path, 1)
    bench.open(is_clean=True)
    aborted = segment_at(bench, 2).aborted
    replay = bench.log.transaction_replay(segment_at(bench, 2))
    assert replay is not None
    whole = filled()
    for each in (bench, whole):
        send(each, 3)
        mark(each, is_commit=False)
    assert aborted.confirm(replay_transactions(bench.mounted, replay), len(replay.entries)) is is_valid
    assert aborted.is_verified
    assert everything(bench) == everything(whole)
    bench.restart()
    assert everything(bench) == everything(whole)


def test_truncation_does_not_verify_an_index() -> None:
    bench = filled()
    bench.log.close(bench.now_ms)
    path = segment_at(bench, 2).aborted.path
    bench.disk.flip_bit(path, 2 + 8 + 7, 0)  # the first offset of the first entry
    bench.open(is_clean=True)
    last = bench.log.end_offset - 1
    bench.log.truncate_to(last)
    assert bench.mounted.size(path) == 3 * ENTRY_BYTES
    whole = filled()
    whole.log.truncate_to(last)
    assert everything(bench) == everything(whole)


def test_entry_of_a_marker_in_a_corrupt_range_is_kept() -> None:
    bench = filled()
    known = everything(bench)
    bench.log.close(bench.now_ms)
    log_path = path_of(FOLDER, 0, LOG)
    bench.disk.flip_bit(log_path, bench.mounted.size(log_path) - 1)  # the last marker of the first segment
    bench.open(is_clean=True)
    assert everything(bench) == known
