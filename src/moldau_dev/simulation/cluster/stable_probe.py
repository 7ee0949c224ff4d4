"""Check `read_committed`: the last stable offset is the first offset of the first open transaction.

Open transactions are derived from the batches on the disk of the leader, independently of its own state.
"""

from collections.abc import Mapping
from itertools import takewhile

from moldau.model.ids import TopicPartition
from moldau.node.node import Node
from moldau_dev.simulation.cluster.disk_log import LogOnDisk
from moldau_dev.simulation.cluster.node_state import Replica, stable_offsets_of
from moldau_dev.simulation.cluster.topology import FOLDER
from moldau_dev.simulation.simulation import Host
from moldau_dev.simulation.workload import Violation


class OpenTransactions:
    """The transactions of one log, in the order of their first batches. A marker counts once it is committed."""

    def __init__(self, log: LogOnDisk) -> None:
        self.log = log
        self._processed = 0  # batches
        self._open: dict[int, int] = {}  # producer id to first offset
        self._ended: list[tuple[int, int]] = []  # first offset and marker offset, ordered by the latter

    def stable_offset(self, high_watermark: int) -> int:
        self._catch_up()
        # Keep all: after a restart of the leader the high watermark may be lower for a while.
        uncommitted = takewhile(lambda each: each[1] >= high_watermark, reversed(self._ended))
        return min([high_watermark, *self._open.values(), *(first for first, _ in uncommitted)])

    def _catch_up(self) -> None:
        if self.log.refresh() or self._processed > len(self.log.batches):
            self._processed = 0
            self._open.clear()
            self._ended.clear()
        for batch in self.log.batches[self._processed :]:
            if batch.is_control and batch.producer_id in self._open:
                self._ended.append((self._open.pop(batch.producer_id), batch.base_offset))
            elif batch.is_transactional and not batch.is_control:
                self._open.setdefault(batch.producer_id, batch.base_offset)
        self._processed = len(self.log.batches)


class StableProbe:
    """Checks the partitions of one topic on their leaders."""

    def __init__(self, topic: str, hosts: Mapping[str, Host]) -> None:
        self.topic = topic
        self.checks = 0
        self._hosts = hosts
        self._logs: dict[tuple[str, TopicPartition], OpenTransactions] = {}
        self._last: dict[tuple[str, TopicPartition], tuple[Replica, int]] = {}

    def check(self, host: str, node: Node) -> None:
        for replica, stable in stable_offsets_of(node, self.topic):
            where = (host, replica.name)
            before = self._last.get(where)
            if before != (replica, stable):
                self._last[where] = (replica, stable)
                self._judge(host, replica, stable, before)

    def _judge(self, host: str, replica: Replica, stable: int, before: tuple[Replica, int] | None) -> None:
        if stable > replica.high_watermark:
            raise Violation(
                f"{replica.name} on {host}: last stable offset {stable} > high watermark {replica.high_watermark}"
            )
        if before is not None and before[0].leader_epoch == replica.leader_epoch and stable < before[1]:
            raise Violation(f"{replica.name} on {host}: the last stable offset decreased from {before[1]} to {stable}")
        on_disk = self._on_disk(host, replica.name)
        expected = on_disk.stable_offset(replica.high_watermark)
        if on_disk.log.end_offset != replica.end_offset:
            return  # an append is in progress
        self.checks += 1
        if stable != expected:
            raise Violation(f"{replica.name} on {host}: the last stable offset is {stable}, but {expected} on disk")

    def _on_disk(self, host: str, name: TopicPartition) -> OpenTransactions:
        if (host, name) not in self._logs:
            self._logs[host, name] = OpenTransactions(LogOnDisk(self._hosts[host].disk, f"{FOLDER}/{name}"))
        return self._logs[host, name]
