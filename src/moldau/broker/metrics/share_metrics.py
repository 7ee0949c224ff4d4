"""Metrics of share groups: their in-flight records on this broker, acknowledgements, and expired locks."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from moldau.broker.metrics import catalogue
from moldau.broker.metrics.prometheus_text import plain, summary
from moldau.broker.shares.shares import Shares
from moldau.machines.shares.acknowledgement import AcknowledgeType
from moldau.machines.shares.partition import SharePartitionMachine
from moldau.machines.shares.state import RecordState

GROUPS_MAX: Final = 1000
"""Groups with a label of their own, in the order of their names; the others are added up without a label."""

_STATES: Final = ("available", "waiting", "acquired", "archiving")
_TYPES: Final = tuple(each for each in AcknowledgeType if each is not AcknowledgeType.GAP)


def share_lines(shares: Shares) -> Iterator[str]:
    """Dashboards sum the values of brokers."""
    in_flight: Counter[str] = Counter()
    records = {state: Counter[str]() for state in _STATES}
    oldest_ms: dict[str, float] = {}
    loaded = shares.loaded()
    labelled = set(sorted({share.key.group_id for share in loaded})[:GROUPS_MAX])
    for share in loaded:
        machine = share.machine
        if machine is not None:
            group = share.key.group_id if share.key.group_id in labelled else ""
            in_flight[group] += machine.end_offset - machine.start_offset
            for state, count in _counts(machine).items():
                records[state][group] += count
            oldest_ms[group] = max(share.oldest_age_ms, oldest_ms.get(group, 0.0))
    yield from plain(catalogue.SHARE_IN_FLIGHT, (((group,), number) for group, number in in_flight.items()))
    yield from plain(
        catalogue.SHARE_RECORDS,
        (((group, state), number) for state, counts in records.items() for group, number in counts.items()),
    )
    yield from plain(catalogue.SHARE_OLDEST_AGE, (((group,), round(age)) for group, age in oldest_ms.items()))
    meter = shares.meter
    yield from plain(catalogue.SHARE_REDELIVERIES, [((group,), number) for group, number in meter.redeliveries.items()])
    yield from plain(catalogue.SHARE_DEAD_LETTERS, [((group,), number) for group, number in meter.dead_letters.items()])
    yield from plain(catalogue.SHARE_DEAD_LETTER_FAILURES, [((), meter.dead_letter_failures)])
    yield from plain(
        catalogue.SHARE_ACKNOWLEDGEMENTS,
        [((each.name.capitalize(),), meter.acknowledgements[each]) for each in _TYPES],
    )
    yield from plain(catalogue.SHARE_LOCK_TIMEOUTS, [((), meter.lock_timeouts)])
    yield from summary(catalogue.SHARE_LATENCY, [((), meter.latency)])


def _counts(machine: SharePartitionMachine) -> dict[str, int]:
    """In-flight records by state; those in back-off are not available yet."""
    waiting = machine.waiting
    return {
        "available": machine.count(RecordState.AVAILABLE) - waiting,
        "waiting": waiting,
        "acquired": machine.count(RecordState.ACQUIRED),
        "archiving": machine.count(RecordState.ARCHIVING),
    }
