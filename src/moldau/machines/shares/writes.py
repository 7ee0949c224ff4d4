"""The states of records as a share-partition leader persists them."""

from collections.abc import Iterable

from moldau.machines.shares.acknowledgement import OffsetRange
from moldau.machines.shares.state import RecordState, StateBatch
from moldau.machines.shares.window import InFlightWindow


def state_batches(window: InFlightWindow, ranges: Iterable[OffsetRange], start_offset: int) -> tuple[StateBatch, ...]:
    """The states of the records in these ranges from `start_offset` on, as they are persisted."""
    batches: list[StateBatch] = []
    for first_offset, last_offset in sorted(ranges):
        position = max(first_offset, start_offset, batches[-1].last_offset + 1 if batches else 0)
        if position > last_offset:
            continue
        for run in window.overlapping(position, last_offset):
            # the next leader does not know the members: what is acquired is available there
            state = RecordState.AVAILABLE if run.state is RecordState.ACQUIRED else run.state
            first, last = max(run.first_offset, position), min(run.last_offset, last_offset)
            newest = batches[-1] if batches else None
            if newest and newest[1:] == (first - 1, state, run.delivery_count):
                batches[-1] = newest._replace(last_offset=last)
            else:
                batches.append(StateBatch(first, last, int(state), run.delivery_count))
    return tuple(batches)
