"""Checks of offsets: one value per offset, one offset per value, and increasing offsets in real time."""

from collections.abc import Iterator

from moldau_dev.history.anomalies import Anomaly, Name
from moldau_dev.history.attempts import Attempt
from moldau_dev.history.contents import Contents


def inconsistent_offsets(contents: Contents) -> Iterator[Anomaly]:
    """Find two values at one offset: an observed record was replaced."""
    for key, values_at in contents.values_at.items():
        for offset, values in values_at.items():
            if len(values) > 1:
                yield Anomaly(Name.INCONSISTENT_OFFSETS, key, f"offset {offset} holds {_list(values)}")


def duplicates(contents: Contents) -> Iterator[Anomaly]:
    """Find one value at two offsets: a retry was appended twice."""
    for key, offsets_of in contents.offsets_of.items():
        for value, offsets in offsets_of.items():
            if len(offsets) > 1:
                yield Anomaly(Name.DUPLICATE, key, f"{value!r} is at offsets {_list(offsets)}")


def acknowledged_below(contents: Contents) -> Iterator[Anomaly]:
    """Find writes at or below an offset that was acknowledged before they began."""
    highest: dict[str, int] = {}
    floors: dict[int, dict[str, int]] = {}
    for _, is_begin, attempt in _events(contents):
        if is_begin:
            floors[attempt.invoked] = {send.key: highest.get(send.key, -1) for send in attempt.sends}
            continue
        floor = floors.pop(attempt.invoked)
        for send in attempt.sends:
            if send.offset is not None and send.offset <= floor[send.key]:
                seen = f"{send.value!r} at {send.offset}, started after {floor[send.key]} was acknowledged"
                yield Anomaly(Name.ACKED_BELOW, send.key, seen)
        for send in attempt.sends:
            if send.offset is not None:
                highest[send.key] = max(highest.get(send.key, -1), send.offset)


def _events(contents: Contents) -> list[tuple[int, bool, Attempt]]:
    """Return the starts and ends of acknowledged writes in order."""
    writes = [attempt for attempt in contents.attempts if attempt.is_ok and attempt.sends]
    begins = [(attempt.invoked, True, attempt) for attempt in writes]
    ends = [(attempt.completed, False, attempt) for attempt in writes]
    return sorted(begins + ends, key=lambda event: event[0])


def _list(things: dict[int, None] | dict[int | str, None]) -> str:
    return ", ".join(map(repr, things))
