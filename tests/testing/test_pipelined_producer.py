"""The pipelined producer of simulated clusters handles responses like librdkafka."""

import random
from collections import Counter
from typing import Any

import pytest

from moldau.model.errors import KafkaError, NotEnoughReplicas, NotLeaderOrFollower, OutOfOrderSequence, RequestTimedOut
from moldau.records.header import read_header
from moldau_dev.simulation.cluster.pipelined_producer import NumberBatch, PartitionPipeline
from moldau_dev.simulation.workload import Ledger, Violation

NO_CLIENT: Any = None
GAP = OutOfOrderSequence("a gap")


def lane(batches: int = 3) -> PartitionPipeline:
    """Ten numbers in each batch."""
    made = PartitionPipeline(NO_CLIENT, 0, Ledger(1), random.Random(1), Counter())
    made._waiting.extend(NumberBatch(10 * index, 10, 0, 0) for index in range(batches))
    return made


def handle(pipeline: PartitionPipeline, *outcomes: int | OSError | KafkaError) -> None:
    pipeline._handle(list(zip(tuple(pipeline._waiting), outcomes, strict=True)))


def sequences(pipeline: PartitionPipeline) -> list[tuple[int, int]]:
    """The epoch and first sequence number of all waiting batches."""
    headers = [read_header(pipeline._encode(numbers)) for numbers in pipeline._waiting]
    return [(each.producer_epoch, each.base_sequence) for each in headers]


def test_unacknowledged_batches_are_retried_with_their_sequence_numbers() -> None:
    pipeline = lane()
    before = sequences(pipeline)
    with pytest.raises(NotLeaderOrFollower):
        handle(pipeline, 0, NotLeaderOrFollower(), NotLeaderOrFollower())
    assert sequences(pipeline) == before[1:]


def test_gap_starts_a_new_producer_epoch() -> None:
    pipeline = lane()
    handle(pipeline, NotEnoughReplicas("too few"), GAP, GAP)
    assert sequences(pipeline) == [(0, 0), (0, 10), (0, 20)]
    handle(pipeline, NotEnoughReplicas("too few"), GAP, GAP)
    assert sequences(pipeline) == [(1, 0), (1, 10), (1, 20)]


def test_gap_reported_by_a_broker_that_rejected_the_first_batch_is_found() -> None:
    with pytest.raises(Violation, match="rejected 0 itself"):
        handle(lane(), NotLeaderOrFollower(), NotLeaderOrFollower(), GAP)


@pytest.mark.parametrize("outcomes", [(GAP, GAP, GAP), (0, GAP, GAP)])
def test_gap_reported_without_a_missing_batch_is_found(outcomes: tuple[int | KafkaError, ...]) -> None:
    with pytest.raises(Violation, match="no batch is missing"):
        handle(lane(), *outcomes)


def test_acknowledgement_covers_earlier_batches() -> None:
    pipeline = lane()
    with pytest.raises(RequestTimedOut):
        handle(pipeline, RequestTimedOut("late"), 10, RequestTimedOut("late"))
    assert [each.first for each in pipeline._waiting] == [20]


def test_acknowledgement_at_a_wrong_offset_is_found() -> None:
    with pytest.raises(Violation, match="acknowledged at offset 20"):
        handle(lane(), 0, 20, 30)
