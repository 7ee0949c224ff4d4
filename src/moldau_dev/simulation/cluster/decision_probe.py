"""Check transaction coordinators: no marker is written before its decision is committed.

Decisions are read from the committed part of `__transaction_state`, markers from the partitions, both on the disks of
the leaders.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from moldau.broker.internal_topics import STATE_TOPIC
from moldau.machines.transactions.state import COMPLETED, PREPARED, TransactionState
from moldau.model.ids import TopicPartition
from moldau.node.node import Node
from moldau.records.header import BatchHeader
from moldau.records.record import iterate_records
from moldau.storage.producer_state import read_marker
from moldau.wire.data_records import decode_transaction_record
from moldau_dev.simulation.cluster.batches import BatchesOnDisk
from moldau_dev.simulation.cluster.node_state import Replica, led_by
from moldau_dev.simulation.cluster.topology import FOLDER
from moldau_dev.simulation.simulation import Host
from moldau_dev.simulation.workload import Violation

_COMMITS = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


class End(NamedTuple):
    """The end of a transaction."""

    producer_id: int
    epoch: int
    is_commit: bool


class DecisionProbe:
    """Reads the topics that transactions write to, and the transaction state topic, on their leaders."""

    def __init__(self, topics: tuple[str, ...], hosts: Mapping[str, Host]) -> None:
        self.topics = topics
        self.checks = 0
        self.decided: dict[End, None] = {}
        self._hosts = hosts
        self._logs: dict[tuple[str, TopicPartition], tuple[int, BatchesOnDisk]] = {}  # with the epoch of its leader
        self._seen: dict[tuple[str, TopicPartition], tuple[int, int]] = {}  # leader epoch and end offset

    def check(self, host: str, node: Node) -> None:
        self.judge(host, led_by(node, (STATE_TOPIC, *self.topics)))

    def judge(self, host: str, led: Iterable[Replica]) -> None:
        """Check the partitions that a host leads: decisions first, since a coordinator may write markers to itself."""
        with_markers = []
        for replica in led:
            if replica.name.topic == STATE_TOPIC:
                self._read(host, replica, replica.high_watermark, self._decide)
            else:
                with_markers.append(replica)
        for replica in with_markers:
            self._read(host, replica, replica.end_offset, self._judge)

    def _read(
        self, host: str, replica: Replica, end_offset: int, take: Callable[[Replica, BatchHeader, bytes], None]
    ) -> None:
        where = (host, replica.name)
        if self._seen.get(where) == (replica.leader_epoch, end_offset):
            return
        self._seen[where] = (replica.leader_epoch, end_offset)
        for header, batch in self._log(where, replica.leader_epoch).read(end_offset):
            take(replica, header, batch)

    def _log(self, where: tuple[str, TopicPartition], epoch: int) -> BatchesOnDisk:
        """Return the reader of a log, a new one in each leader epoch, since the log may have been truncated."""
        known = self._logs.get(where)
        if known is None or known[0] != epoch:
            host, name = where
            known = self._logs[where] = epoch, BatchesOnDisk(self._hosts[host].disk, f"{FOLDER}/{name}")
        return known[1]

    def _decide(self, replica: Replica, header: BatchHeader, batch: bytes) -> None:  # noqa: ARG002
        for end in _ends_in(batch):
            self.decided[end] = None

    def _judge(self, replica: Replica, header: BatchHeader, batch: bytes) -> None:
        marker = read_marker(batch) if header.is_control else None
        if marker is None:
            return
        self.checks += 1
        end = End(header.producer_id, header.producer_epoch, not marker.is_abort)
        if end not in self.decided:
            raise Violation(f"{replica.name}: the marker at {header.base_offset} has {end}, which is not decided")


def _ends_in(batch: bytes) -> Iterator[End]:
    for record in iterate_records(batch):
        _, value = decode_transaction_record(record.key or b"", record.value)
        state = TransactionState(value.transaction_status) if value is not None else TransactionState.EMPTY
        if state in PREPARED or state in COMPLETED:
            yield End(value.producer_id, value.producer_epoch, state in _COMMITS)
