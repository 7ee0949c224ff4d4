"""The decision probe finds markers without a committed decision, and no others."""

import pytest
from disks_scene import Disks

from moldau.broker.internal_topics import STATE_TOPIC
from moldau.broker.transactions.record_serde import TransactionCoding
from moldau.machines.transactions.state import Transaction, TransactionState, record_of
from moldau.model.ids import ProducerId, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.control import build_transaction_marker
from moldau.records.header import write_offsets
from moldau_dev.simulation.cluster.decision_probe import DecisionProbe
from moldau_dev.simulation.cluster.node_state import Replica
from moldau_dev.simulation.workload import Violation

STATES, PLACE = TopicPartition(STATE_TOPIC, 0), TopicPartition("t", 0)


def decision(offset: int, state: TransactionState, *, epoch: int = 3) -> bytes:
    record = record_of("id", Transaction(ProducerId(7), epoch, 1000, state, {PLACE: None}))
    batch = build_batch([(1, *TransactionCoding(lambda: 2).encode(record), ())])
    write_offsets(batch, 0, offset, 0)
    return bytes(batch)


def marker(offset: int, *, is_commit: bool = True, epoch: int = 3) -> bytes:
    batch = build_transaction_marker(
        is_commit=is_commit,
        producer_id=7,
        producer_epoch=epoch,
        coordinator_epoch=0,
        timestamp_ms=1,
        base_offset=offset,
        leader_epoch=0,
    )
    return bytes(batch)


def led(name: TopicPartition, high_watermark: int, end_offset: int, epoch: int = 0) -> Replica:
    return Replica(name, epoch, True, high_watermark, end_offset)


def probe_of(disks: Disks) -> DecisionProbe:
    return DecisionProbe(("t",), disks.hosts)


def test_probe_accepts_a_marker_of_a_committed_decision() -> None:
    disks = Disks()
    disks.write(
        "node-1",
        decision(0, TransactionState.ONGOING),
        decision(1, TransactionState.PREPARE_COMMIT),
        folder=str(STATES),
    )
    disks.write("node-2", marker(0))
    probe = probe_of(disks)
    probe.judge("node-1", [led(STATES, 2, 2)])
    probe.judge("node-2", [led(PLACE, 0, 1)])
    assert probe.checks == 1


@pytest.mark.parametrize(
    ("high_watermark", "is_commit", "epoch"),
    [(1, True, 3), (2, False, 3), (2, True, 4)],
    ids=["early", "other", "epoch"],
)
def test_probe_finds_a_marker_without_a_committed_decision(high_watermark: int, is_commit: bool, epoch: int) -> None:
    disks = Disks()
    disks.write(
        "node-1",
        decision(0, TransactionState.ONGOING),
        decision(1, TransactionState.PREPARE_COMMIT),
        folder=str(STATES),
    )
    disks.write("node-2", marker(0, is_commit=is_commit, epoch=epoch))
    probe = probe_of(disks)
    probe.judge("node-1", [led(STATES, high_watermark, 2)])
    with pytest.raises(Violation, match="is not decided"):
        probe.judge("node-2", [led(PLACE, 0, 1)])


def test_decision_stays_valid_under_a_new_leader() -> None:
    disks = Disks()
    disks.write("node-1", decision(0, TransactionState.PREPARE_ABORT), folder=str(STATES))
    probe = probe_of(disks)
    probe.judge("node-1", [led(STATES, 1, 1)])
    disks.write(
        "node-2", decision(0, TransactionState.PREPARE_ABORT), decision(1, TransactionState.EMPTY), folder=str(STATES)
    )
    disks.write("node-2", marker(0, is_commit=False))
    probe.judge("node-2", [led(STATES, 2, 2, epoch=1), led(PLACE, 1, 1)])
    disks.write("node-2", marker(1, is_commit=False))
    probe.judge("node-2", [led(PLACE, 1, 2)])
    assert probe.checks == 2, "each marker is looked at once"
