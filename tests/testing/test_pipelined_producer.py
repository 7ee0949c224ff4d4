"""The producer of simulated clusters that has several batches under way judges answers as librdkafka takes them."""

import random
from collections import Counter
from typing import Any

import pytest

from moldau.model.errors import KafkaError, NotEnoughReplicas, NotLeaderOrFollower, OutOfOrderSequence, RequestTimedOut
from moldau.records.header import read_header
from moldau_dev.simulation.cluster.pipelined_producer import Lane, Numbers
from moldau_dev.simulation.workload import Ledger, Violation

NO_CLIENT: Any = None
GAP = OutOfOrderSequence("a gap")


def lane(batches: int = 3) -> Lane:
    """Ten numbers in each batch."""
    made = Lane(NO_CLIENT, 0, Ledger(1), random.Random(1), Counter())
    made._waiting.extend(Numbers(10 * index, 10, 0, 0) for index in range(batches))
    return made


def hear(heard: Lane, *outcomes: int | OSError | KafkaError) -> None:
    heard._hear(list(zip(tuple(heard._waiting), outcomes, strict=True)))


def sequences(heard: Lane) -> list[tuple[int, int]]:
    """The epoch and the first sequence number of all that waits."""
    headers = [read_header(heard._encode(numbers)) for numbers in heard._waiting]
    return [(each.producer_epoch, each.base_sequence) for each in headers]


def test_what_was_not_acknowledged_is_sent_again_with_the_sequence_numbers_that_it_had() -> None:
    heard = lane()
    before = sequences(heard)
    with pytest.raises(NotLeaderOrFollower):
        hear(heard, 0, NotLeaderOrFollower(), NotLeaderOrFollower())
    assert sequences(heard) == before[1:]


def test_a_gap_begins_a_new_epoch_in_which_all_is_sent_as_new() -> None:
    heard = lane()
    hear(heard, NotEnoughReplicas("too few"), GAP, GAP)
    assert sequences(heard) == [(0, 0), (0, 10), (0, 20)]
    hear(heard, NotEnoughReplicas("too few"), GAP, GAP)
    assert sequences(heard) == [(1, 0), (1, 10), (1, 20)]


def test_a_gap_told_by_who_has_just_sent_the_first_away_is_found() -> None:
    with pytest.raises(Violation, match="just sent away 0"):
        hear(lane(), NotLeaderOrFollower(), NotLeaderOrFollower(), GAP)


@pytest.mark.parametrize("outcomes", [(GAP, GAP, GAP), (0, GAP, GAP)])
def test_a_gap_where_nothing_is_missing_is_found(outcomes: tuple[int | KafkaError, ...]) -> None:
    with pytest.raises(Violation, match="nothing before it is missing"):
        hear(lane(), *outcomes)


def test_what_is_acknowledged_speaks_for_what_was_sent_before_it() -> None:
    heard = lane()
    with pytest.raises(RequestTimedOut):
        hear(heard, RequestTimedOut("late"), 10, RequestTimedOut("late"))
    assert [each.first for each in heard._waiting] == [20]


def test_what_is_acknowledged_at_another_offset_is_found() -> None:
    with pytest.raises(Violation, match="acknowledged at offset 20"):
        hear(lane(), 0, 20, 30)
