"""The aborted transactions of a segment, computed from the log.

A transaction index has no checksum, and a flipped bit in it would show aborted records to read_committed consumers.
Only the log tells whether it is right: the markers in the segment, and where their transactions began, which may be in
segments before it, from the newest producer snapshot on. `replay_transactions` runs in a worker process, reads past the
page cache, and skips corrupt batches. What the index says about markers among those is kept.
"""

from dataclasses import dataclass

from moldau.model.ports import Disk
from moldau.storage.batch_verifier import BatchVerifier
from moldau.storage.names import LOG, path_of
from moldau.storage.producer_snapshots import newest_valid
from moldau.storage.producer_state import Producers
from moldau.storage.recovery import replay_marker
from moldau.storage.scrub import read_sectors
from moldau.storage.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True)
class TransactionReplay:
    """The segments from the log start up to the one whose index is verified; picklable."""

    folder: str
    snapshots: list[int]  # offsets of the producer snapshots up to the last segment
    verifiers: list[BatchVerifier]  # of each segment
    entries: list[AbortedTransaction]  # of the index


def replay_transactions(disk: Disk, replay: TransactionReplay) -> list[AbortedTransaction]:
    """Return the entries that the index should have."""
    producers = Producers()
    snapshot = newest_valid(disk, replay.folder, replay.snapshots)
    if snapshot is None:
        producers.clear(replay.verifiers[0].base_offset)
    else:
        producers.load(snapshot.producers, snapshot.offset, now_ms=0)
    aborted: list[AbortedTransaction] = []
    for verifier in replay.verifiers:
        if verifier.bound > producers.end_offset:
            aborted = _replay_segment(disk, replay.folder, verifier, producers)
            producers.end_offset = verifier.bound
    corrupt = replay.verifiers[-1].corrupt
    unreadable = [
        entry for entry in replay.entries if any(each.offset <= entry.last_offset < each.end_offset for each in corrupt)
    ]
    return sorted([*aborted, *unreadable], key=lambda entry: entry.last_offset)


def _replay_segment(disk: Disk, folder: str, verifier: BatchVerifier, producers: Producers) -> list[AbortedTransaction]:
    aborted: list[AbortedTransaction] = []
    path = path_of(folder, verifier.base_offset, LOG)
    first_offset = producers.end_offset
    while not verifier.is_done:
        start = verifier.position
        data = read_sectors(disk, path, min(verifier.wanted_bytes, verifier.size_bytes - start), start)
        for position, header in verifier.verify(data, start):
            if header.producer_id < 0 or header.base_offset < first_offset:
                continue
            if header.is_control:
                begin = position - start
                replay_marker(memoryview(data)[begin : begin + header.size_bytes], producers, aborted)
            else:
                producers.appended_batch(header, header.base_offset, header.max_timestamp)
        if not data:
            break
    return aborted
