"""Combines the state batches of a share partition: sorted, disjoint ranges of offsets with equal delivery states.

A write brings the states of some ranges. Where it overlaps the state so far, the higher delivery count wins, and for
equal counts the later state (available, acknowledged, archived), as in Kafka. A record only ever moves in that order,
so the result does not depend on the order of the writes, nor on repetitions of them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from moldau.machines.shares.state import StateBatch


def combine(held: Sequence[StateBatch], updates: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return the state after these updates, from the start offset on, with adjacent equal ranges joined."""
    combined = list(held)
    for update in updates:
        _overlay(combined, update)
    return tuple(_joined(_trimmed(combined, start_offset)))


def _overlay(batches: list[StateBatch], update: StateBatch) -> None:
    """Insert the update into sorted disjoint batches."""
    low = bisect_left(batches, update.first_offset, key=lambda each: each.last_offset)
    high = low
    pieces: list[StateBatch] = []
    offset = update.first_offset
    while high < len(batches) and batches[high].first_offset <= update.last_offset:
        old = batches[high]
        if old.first_offset < offset:
            pieces.append(old._replace(last_offset=offset - 1))
        elif old.first_offset > offset:
            pieces.append(update._replace(first_offset=offset, last_offset=old.first_offset - 1))
        shared_first = max(offset, old.first_offset)
        shared_last = min(old.last_offset, update.last_offset)
        newest = max(old, update, key=lambda each: (each.delivery_count, each.delivery_state))
        pieces.append(newest._replace(first_offset=shared_first, last_offset=shared_last))
        if old.last_offset > shared_last:
            pieces.append(old._replace(first_offset=shared_last + 1))
        offset = shared_last + 1
        high += 1
    if offset <= update.last_offset:
        pieces.append(update._replace(first_offset=offset))
    batches[low:high] = pieces


def _trimmed(batches: Iterable[StateBatch], start_offset: int) -> Iterable[StateBatch]:
    for each in batches:
        if each.last_offset >= start_offset:
            yield each if each.first_offset >= start_offset else each._replace(first_offset=start_offset)


def _joined(batches: Iterable[StateBatch]) -> Iterable[StateBatch]:
    last: StateBatch | None = None
    for each in batches:
        if last is not None and last.last_offset + 1 == each.first_offset and last[2:] == each[2:]:
            last = last._replace(last_offset=each.last_offset)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
