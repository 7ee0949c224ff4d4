"""Visibility of fetched batches: control batches and aborted transactions are hidden from consumers."""

from collections.abc import Iterator, Sequence

from moldau.client.types import AbortedTransaction, Isolation
from moldau.model.ports import Buffer
from moldau.records.header import BatchHeader
from moldau.records.record import iterate_batches, iterate_records

ABORT_MARKER = 0


def visible_batches(
    records: Buffer, aborted: Sequence[AbortedTransaction], isolation: Isolation
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """Yield every whole batch and whether its records are visible; hidden ones still advance the position."""
    ahead = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    aborting: set[int] = set()
    for header, batch in iterate_batches(records):
        while ahead and ahead[-1].first_offset <= header.last_offset:
            aborting.add(ahead.pop().producer_id)
        if header.is_control:
            if _is_abort(batch):
                aborting.discard(header.producer_id)
            yield header, batch, False
        else:
            is_aborted = header.is_transactional and header.producer_id in aborting
            yield header, batch, isolation is Isolation.READ_UNCOMMITTED or not is_aborted


def _is_abort(batch: memoryview) -> bool:
    marker = next(iterate_records(batch), None)
    if marker is None or marker.key is None or len(marker.key) < 4:
        return False
    return int.from_bytes(marker.key[2:4], "big") == ABORT_MARKER
