"""Share groups with `share.order=key`: which records wait for others, and when they are acquired."""

import pytest
from shares_scene import LOCK_MS, SETTINGS, limits

from moldau.machines.shares.acknowledgement import Acknowledgement, AcknowledgeType, OffsetRange
from moldau.machines.shares.acquisition import LogRead
from moldau.machines.shares.inspection import InspectedRecord
from moldau.machines.shares.ordered_partition import OrderedPartitionMachine
from moldau.machines.shares.state import UNINITIALIZED_START_OFFSET, RecordState, ShareState, StateBatch

pytestmark = pytest.mark.proves("C8")

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
ORDERED = SETTINGS._replace(is_ordered=True)
KEYS = (1, 1, 2, None, 2, 1)  # of the offsets 0 to 5


def machine_with(keys: tuple[int | None, ...] = KEYS, state: ShareState | None = None) -> OrderedPartitionMachine:
    """A machine that has inspected records with these keys."""
    state = ShareState(0, UNINITIALIZED_START_OFFSET) if state is None else state
    machine = OrderedPartitionMachine(state, ORDERED, 0, len(keys), 0, 0.0)
    inspect(machine, keys)
    if machine.next_write() is not None:
        machine.persisted(0.0)
    return machine


def inspect(machine: OrderedPartitionMachine, keys: tuple[int | None, ...]) -> None:
    offset = machine.inspected_until
    assert offset is not None
    records = [InspectedRecord(each, key) for each, key in enumerate(keys) if each >= offset]
    machine.inspect(offset, len(keys), records)


def acquire(machine: OrderedPartitionMachine, records_max: int = 100, now_ms: float = 0.0) -> list[int]:
    """The offsets that a fetch of all records acquires."""
    offset = machine.next_fetch_offset()
    if offset is None:
        return []
    read = LogRead(offset, machine.end_offset, [OffsetRange(0, machine.end_offset - 1)])
    ranges = machine.acquire("m", read, limits(records_max), now_ms)
    return [each for first, last, _ in ranges for each in range(first, last + 1)]


def acknowledge(machine: OrderedPartitionMachine, offset: int, kind: AcknowledgeType = ACCEPT) -> None:
    machine.acknowledge("m", [Acknowledgement(offset, offset, (kind,))], 0.0)


def write(machine: OrderedPartitionMachine) -> None:
    assert machine.next_write() is not None
    machine.persisted(0.0)


def test_first_records_of_the_keys_are_acquired_together() -> None:
    machine = machine_with()
    assert acquire(machine) == [0, 2, 3]
    assert acquire(machine) == []


def test_next_record_of_a_key_follows_when_the_acceptance_is_durable() -> None:
    machine = machine_with()
    acquire(machine)
    acknowledge(machine, 0)
    assert acquire(machine) == []
    write(machine)
    assert acquire(machine) == [1]
    acknowledge(machine, 2)
    acknowledge(machine, 1)
    write(machine)
    assert acquire(machine) == [4, 5]


def test_failing_record_blocks_its_key_alone() -> None:
    machine = machine_with()
    acquire(machine)
    acknowledge(machine, 0, RELEASE)
    acknowledge(machine, 2)
    write(machine)
    assert acquire(machine) == [0, 4]


def test_record_that_failed_in_all_attempts_lets_its_key_continue() -> None:
    machine = machine_with((1, 1))
    for attempt in range(SETTINGS.delivery_count_limit):
        assert acquire(machine, now_ms=attempt * LOCK_MS) == [0]
        machine.expire((attempt + 1) * LOCK_MS)
    assert acquire(machine) == []
    write(machine)
    assert acquire(machine) == [1]


def test_fetch_acquires_no_more_records_than_its_limit() -> None:
    machine = machine_with((None,) * 6)
    assert acquire(machine, 2) == [0, 1]
    assert acquire(machine, 3) == [2, 3, 4]


def test_records_are_not_acquired_before_they_are_inspected() -> None:
    batches = (StateBatch(0, 2, RecordState.AVAILABLE, 0), StateBatch(3, 3, RecordState.ACKNOWLEDGED, 1))
    machine = OrderedPartitionMachine(ShareState(0, 0, batches), ORDERED, 0, 4, 0, 0.0)
    assert machine.next_fetch_offset() is None
    assert machine.inspected_until == 0
    inspect(machine, (1, 1, 2, 2))
    assert acquire(machine) == [0, 2]


def test_new_leader_keeps_the_order() -> None:
    state = ShareState(
        0, 0, (StateBatch(0, 1, RecordState.AVAILABLE, 0), StateBatch(2, 2, RecordState.ACKNOWLEDGED, 1))
    )
    machine = machine_with((1, 1, 1, 1), state)
    assert acquire(machine) == [0]


def test_gaps_between_inspected_records_are_passed() -> None:
    machine = OrderedPartitionMachine(ShareState(0, 0), ORDERED, 0, 10, 0, 0.0)
    machine.inspect(0, 10, [InspectedRecord(4, 1), InspectedRecord(7, 1)])
    assert machine.start_offset == 4
    assert acquire(machine) == [4]
    acknowledge(machine, 4)
    write(machine)
    assert machine.start_offset == 7
    assert acquire(machine) == [7]


def test_deleted_records_let_their_key_continue() -> None:
    machine = machine_with()
    acquire(machine)
    machine.advance_log_start(1, 0.0)
    assert acquire(machine) == [1]


def test_order_can_be_switched_on_and_off() -> None:
    machine = machine_with()
    assert acquire(machine, 1) == [0]
    machine.configure(SETTINGS)
    assert acquire(machine) == [1, 2, 3, 4, 5]
    for offset in (1, 2, 3, 4, 5):
        acknowledge(machine, offset, RELEASE)
    write(machine)
    machine.configure(ORDERED)
    assert acquire(machine) == []
    inspect(machine, KEYS)
    assert acquire(machine) == [2, 3]  # 0 is still acquired


def test_window_holds_a_limited_number_of_blocked_records() -> None:
    machine = machine_with((1,) * 100)
    assert machine.end_offset == SETTINGS.in_flight_max
    assert machine.inspected_until is None
    assert acquire(machine) == [0]
    assert machine.inspected_until is None
    acknowledge(machine, 0)
    write(machine)
    assert acquire(machine) == [1]
    assert machine.inspected_until == SETTINGS.in_flight_max
