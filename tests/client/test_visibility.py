"""Visibility of transactional records by isolation level."""

from moldau.client.types import AbortedTransaction, Isolation
from moldau.client.visibility import visible_batches
from moldau.records.builder import build_batch
from moldau.records.control import build_transaction_marker


def sent(producer: int, offset: int, *, is_transactional: bool = True) -> bytearray:
    return build_batch(
        [(0, None, b"%d" % offset, ())],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )


def ended(producer: int, offset: int, *, is_commit: bool) -> bytearray:
    return build_transaction_marker(
        is_commit=is_commit,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )


LOG = b"".join(
    [
        sent(1, 0),  # aborted below
        sent(2, 1),  # committed below
        sent(3, 2, is_transactional=False),
        ended(1, 3, is_commit=False),
        sent(1, 4),  # the same producer, a new transaction, committed
        ended(2, 5, is_commit=True),
        ended(1, 6, is_commit=True),
        sent(2, 7),  # aborted
        ended(2, 8, is_commit=False),
    ]
)
ABORTED = [AbortedTransaction(2, 7), AbortedTransaction(1, 0)]


def seen(isolation: Isolation, log: bytes = LOG, aborted: list[AbortedTransaction] = ABORTED) -> list[int]:
    return [header.base_offset for header, _, is_visible in visible_batches(log, aborted, isolation) if is_visible]


def test_aborted_records_are_hidden_with_read_committed() -> None:
    assert seen(Isolation.READ_COMMITTED) == [1, 2, 4]


def test_read_uncommitted_shows_everything_but_markers() -> None:
    assert seen(Isolation.READ_UNCOMMITTED, aborted=[]) == [0, 1, 2, 4, 7]


def test_hidden_batches_are_returned_to_advance_the_position() -> None:
    assert len(list(visible_batches(LOG, ABORTED, Isolation.READ_COMMITTED))) == 9


def test_fetch_inside_an_aborted_transaction_hides_it() -> None:
    log = b"".join([sent(1, 4), ended(1, 5, is_commit=False), sent(1, 6)])
    assert seen(Isolation.READ_COMMITTED, log, [AbortedTransaction(1, 0)]) == [6]
