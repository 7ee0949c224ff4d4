"""The in-flight window of a share partition: acquisition, acknowledgements, locks, writes and the start offset."""

import pytest
from shares_scene import BACKOFF, LOCK_MS, SETTINGS, limits, machine_of, read_of, runs_of

from moldau.machines.shares.acknowledgement import Acknowledgement, AcknowledgeType
from moldau.machines.shares.acquisition import AcquiredRange
from moldau.machines.shares.partition import SharePartitionMachine
from moldau.machines.shares.state import RecordState, ShareState, StateBatch, StateWrite
from moldau.machines.shares.window import DURABLE
from moldau.model.errors import InvalidRecordState, InvalidRequest

pytestmark = pytest.mark.proves("C8")

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


def acquire(
    machine: SharePartitionMachine, member: str, *batches: tuple[int, int], now_ms: float = 0.0
) -> list[AcquiredRange]:
    return machine.acquire(member, read_of(machine, *batches), limits(), now_ms)


def acknowledge(machine: SharePartitionMachine, member: str, first: int, last: int, *kinds: int) -> int:
    return machine.acknowledge(member, [Acknowledgement(first, last, kinds)], 0.0)


def write(machine: SharePartitionMachine) -> StateWrite:
    """The next write, which succeeds at once."""
    found = machine.next_write()
    assert found is not None
    machine.persisted(0.0)
    return found


def settle(machine: SharePartitionMachine) -> SharePartitionMachine:
    """Write the initial start offset."""
    write(machine)
    return machine


def test_first_write_persists_the_resolved_start_offset() -> None:
    machine = machine_of(100, start_offset=7)
    assert machine.next_write() == StateWrite(7, 0, ())


def test_members_acquire_different_records() -> None:
    machine = machine_of()
    assert acquire(machine, "m1", (0, 9)) == [(0, 9, 1)]
    assert machine.next_fetch_offset() == 10
    assert acquire(machine, "m2", (10, 14)) == [(10, 14, 1)]
    assert runs_of(machine) == [(0, 9, "ACQUIRED"), (10, 14, "ACQUIRED")]


def test_gaps_between_batches_are_archived() -> None:
    machine = machine_of()
    assert machine.acquire("m1", read_of(machine, (3, 5), (9, 9), end_offset=12), limits(), 0.0) == [
        (3, 5, 1),
        (9, 9, 1),
    ]
    assert machine.start_offset == 3
    assert runs_of(machine)[-3:] == [(6, 8, "ARCHIVED"), (9, 9, "ACQUIRED"), (10, 11, "ARCHIVED")]


def test_in_flight_records_are_limited() -> None:
    machine = machine_of()
    assert acquire(machine, "m1", (0, 19), (20, 59)) == [(0, SETTINGS.in_flight_max - 1, 1)]
    assert machine.next_fetch_offset() is None
    acknowledge(machine, "m1", 0, 4, ACCEPT)
    assert machine.next_fetch_offset() is None  # not before the acceptance is durable
    write(machine)
    assert machine.next_fetch_offset() == 30
    assert acquire(machine, "m2", (20, 59)) == [(30, 34, 1)]


def test_whole_batches_are_acquired_unless_the_limit_is_strict() -> None:
    machine = machine_of()
    read = read_of(machine, (0, 9), (10, 19))
    assert machine.acquire("m1", read, limits(4), 0.0) == [(0, 9, 1)]
    strict = machine_of()
    assert strict.acquire("m1", read, limits(4, is_strict=True), 0.0) == [(0, 3, 1)]
    assert strict.next_fetch_offset() == 4
    machine.release_member("m1", 0.0)
    assert machine.acquire("m1", read_of(machine, (0, 9)), limits(4, is_strict=True), 0.0) == [(0, 3, 2)]


def test_acquired_ranges_are_split_at_batches_by_the_batch_size() -> None:
    machine = machine_of()
    read = read_of(machine, (0, 4), (5, 9), (10, 14))
    assert machine.acquire("m1", read, limits(batch_size=10), 0.0) == [(0, 9, 1), (10, 14, 1)]


def test_accepted_records_move_the_start_offset_when_they_are_durable() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 9))
    number = acknowledge(machine, "m1", 0, 5, ACCEPT)
    assert machine.next_write() == StateWrite(6, 0, ())
    machine.expire(0.0)
    assert machine.start_offset == 0
    assert machine.persisted(0.0) == number
    assert machine.start_offset == 6


def test_records_accepted_out_of_order_stay_in_the_window() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 9))
    acknowledge(machine, "m1", 5, 9, ACCEPT)
    assert write(machine) == StateWrite(0, 5, (StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1),))
    assert machine.start_offset == 0
    acknowledge(machine, "m1", 0, 4, ACCEPT)
    assert write(machine) == StateWrite(10, 0, ())
    assert machine.start_offset == machine.end_offset == 10


def test_types_of_an_acknowledgement_apply_to_their_records() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 3))
    acknowledge(machine, "m1", 0, 3, RELEASE, ACCEPT, ACCEPT, REJECT)
    assert write(machine).batches == (
        StateBatch(0, 0, RecordState.AVAILABLE, 1),
        StateBatch(1, 2, RecordState.ACKNOWLEDGED, 1),
        StateBatch(3, 3, RecordState.ARCHIVED, 1),
    )
    assert acquire(machine, "m2", (0, 3)) == [(0, 0, 2)]


def test_released_record_is_available_when_the_release_is_durable() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 9))
    acknowledge(machine, "m1", 2, 3, RELEASE)
    assert machine.next_write() is not None
    assert machine.next_fetch_offset() == 10
    machine.persisted(0.0)
    assert machine.next_fetch_offset() == 2
    assert acquire(machine, "m2", (0, 9)) == [(2, 3, 2)]


def test_record_is_archived_after_the_last_delivery_attempt() -> None:
    machine = settle(machine_of())
    for attempt in range(SETTINGS.delivery_count_limit):
        assert acquire(machine, "m1", (0, 0)) == [(0, 0, attempt + 1)]
        acknowledge(machine, "m1", 0, 0, RELEASE)
        write(machine)
    assert machine.start_offset == 1


def test_acknowledgement_is_all_or_nothing() -> None:
    machine = machine_of()
    acquire(machine, "m1", (0, 4))
    acquire(machine, "m2", (5, 9))
    before = runs_of(machine)
    for last in (9, 20):  # of another member, and beyond the window
        with pytest.raises(InvalidRecordState):
            acknowledge(machine, "m1", 0, last, ACCEPT)
    with pytest.raises(InvalidRequest):
        machine.acknowledge("m1", [Acknowledgement(0, 2, (ACCEPT,)), Acknowledgement(2, 3, (ACCEPT,))], 0.0)
    with pytest.raises(InvalidRequest):
        acknowledge(machine, "m1", 0, 4, ACCEPT, ACCEPT)
    with pytest.raises(InvalidRequest):
        acknowledge(machine, "m1", 0, 4, 9)
    assert runs_of(machine) == before


def test_acknowledgement_of_done_records_is_rejected() -> None:
    machine = machine_of()
    acquire(machine, "m1", (0, 4))
    acknowledge(machine, "m1", 0, 4, ACCEPT)
    with pytest.raises(InvalidRecordState):
        acknowledge(machine, "m1", 0, 4, ACCEPT)
    write(machine)
    with pytest.raises(InvalidRecordState):
        acknowledge(machine, "m1", 0, 4, RELEASE)


def test_expired_lock_makes_the_record_available_to_others() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 4))
    assert machine.deadline_ms == LOCK_MS
    machine.expire(LOCK_MS - 1)
    assert machine.next_fetch_offset() == 5
    machine.expire(LOCK_MS)
    assert machine.next_fetch_offset() == 0
    assert write(machine).batches == (StateBatch(0, 4, RecordState.AVAILABLE, 1),)
    assert acquire(machine, "m2", (0, 4), now_ms=LOCK_MS) == [(0, 4, 2)]
    with pytest.raises(InvalidRecordState):
        acknowledge(machine, "m1", 0, 4, ACCEPT)


def test_renewed_lock_expires_later() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 4))
    renewed = machine.acknowledge("m1", [Acknowledgement(1, 2, (RENEW,))], LOCK_MS / 2)
    assert renewed == DURABLE
    assert machine.next_write() is None
    machine.expire(LOCK_MS)
    assert runs_of(machine) == [(0, 0, "AVAILABLE"), (1, 2, "ACQUIRED"), (3, 4, "AVAILABLE")]
    machine.expire(1.5 * LOCK_MS)
    assert runs_of(machine) == [(0, 4, "AVAILABLE")]


def test_lock_does_not_expire_while_its_acknowledgement_is_written() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 4))
    acknowledge(machine, "m1", 0, 4, RELEASE)
    assert machine.next_write() is not None
    machine.expire(2 * LOCK_MS)
    assert runs_of(machine) == [(0, 4, "AVAILABLE")]
    assert machine.next_fetch_offset() == 5
    machine.persist_failed()
    machine.expire(2 * LOCK_MS)
    assert machine.next_fetch_offset() == 0


def test_failed_write_returns_the_records_to_their_member() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 4))
    number = acknowledge(machine, "m1", 0, 4, ACCEPT)
    assert machine.next_write() is not None
    assert machine.persist_failed() == number
    assert runs_of(machine) == [(0, 4, "ACQUIRED")]
    assert acknowledge(machine, "m1", 0, 4, ACCEPT) > number
    assert write(machine) == StateWrite(5, 0, ())


def test_acknowledgements_during_a_write_share_the_next_one() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 9))
    first = acknowledge(machine, "m1", 0, 0, ACCEPT)
    assert machine.next_write() is not None
    later = {acknowledge(machine, "m1", offset, offset, ACCEPT) for offset in (1, 2, 3)}
    assert machine.next_write() is None
    assert machine.persisted(0.0) == first
    assert machine.start_offset == 1
    assert machine.next_write() == StateWrite(4, 0, ())
    assert {machine.persisted(0.0)} == later


def test_closed_session_releases_the_records_of_the_member_only() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 4))
    acquire(machine, "m2", (5, 9))
    machine.release_member("m1", 0.0)
    assert runs_of(machine) == [(0, 4, "AVAILABLE"), (5, 9, "ACQUIRED")]


def test_deleted_records_leave_the_window_and_may_be_acknowledged() -> None:
    machine = settle(machine_of())
    acquire(machine, "m1", (0, 9))
    machine.advance_log_start(6, 0.0)
    assert (machine.start_offset, machine.end_offset) == (6, 10)
    assert write(machine).start_offset == 6
    acknowledge(machine, "m1", 0, 7, ACCEPT)
    assert write(machine).start_offset == 8
    machine.advance_log_start(50, 0.0)
    assert machine.next_fetch_offset() == machine.start_offset == 50


def test_next_leader_continues_with_the_durable_state() -> None:
    batches = (StateBatch(12, 13, RecordState.ARCHIVED, 2), StateBatch(15, 15, RecordState.AVAILABLE, 1))
    machine = machine_of(100, ShareState(4, 10, batches))
    assert runs_of(machine) == [
        (10, 11, "AVAILABLE"),
        (12, 13, "ARCHIVED"),
        (14, 14, "AVAILABLE"),
        (15, 15, "AVAILABLE"),
    ]
    assert acquire(machine, "m1", (10, 19)) == [(10, 11, 1), (14, 14, 1), (15, 15, 2), (16, 19, 1)]
    assert machine.next_write() is None


def test_next_leader_with_a_shorter_log_forgets_the_offsets_behind_it() -> None:
    batches = (StateBatch(12, 30, RecordState.ACKNOWLEDGED, 1),)
    machine = machine_of(20, ShareState(0, 10, batches))
    assert (machine.start_offset, machine.end_offset) == (10, 20)
    assert machine_of(5, ShareState(0, 10, batches)).start_offset == 5


def test_state_of_alternating_records_is_bounded() -> None:
    """One record that stays acquired holds the window open: its runs are limited, not only its records."""
    machine = settle(machine_of(10_000))
    acquire(machine, "m1", (0, 0))
    for offset in range(1, 10_000):
        if machine.next_fetch_offset() is None:
            break
        acquire(machine, "m2", (offset, offset))
        acknowledge(machine, "m2", offset, offset, ACCEPT if offset % 2 else REJECT)
        write(machine)
    assert len(machine.runs) <= 4 * SETTINGS.in_flight_max + 1
    acknowledge(machine, "m1", 0, 0, ACCEPT)
    write(machine)
    assert not machine.runs
    assert machine.next_fetch_offset() == machine.start_offset


@pytest.mark.parametrize(("count", "delay_ms"), [(1, 500.0), (2, 1000.0), (3, 1500.0), (9, 1500.0)])
def test_backoff_grows_with_the_delivery_count(count: int, delay_ms: float) -> None:
    assert BACKOFF.delay_ms(count) == delay_ms


def test_record_waits_for_the_end_of_its_backoff() -> None:
    machine = settle(machine_of(settings=SETTINGS._replace(backoff=BACKOFF)))
    acquire(machine, "m1", (0, 1))
    acknowledge(machine, "m1", 0, 0, RELEASE)
    machine.next_write()
    machine.persisted(100.0)
    assert machine.next_fetch_offset() == 2
    assert machine.deadline_ms == 600.0
    machine.expire(599.0)
    assert machine.next_fetch_offset() == 2
    machine.expire(600.0)
    assert machine.next_fetch_offset() == 0
    assert acquire(machine, "m2", (0, 1), now_ms=600.0) == [(0, 0, 2)]
    machine.expire(LOCK_MS)
    assert machine.next_fetch_offset() == 2  # the expired record 1 waits too


def test_new_leader_begins_the_backoff_of_delivered_records() -> None:
    state = ShareState(0, 0, (StateBatch(0, 1, RecordState.AVAILABLE, 2), StateBatch(2, 2, RecordState.AVAILABLE, 0)))
    machine = machine_of(state=state, settings=SETTINGS._replace(backoff=BACKOFF))
    assert machine.next_fetch_offset() == 2
    machine.expire(1000.0)
    assert machine.next_fetch_offset() == 0
