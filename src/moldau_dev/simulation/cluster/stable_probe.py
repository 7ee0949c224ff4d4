"""The promise to readers of committed records: the last stable offset is where the first open transaction begins.

What is open is worked out from the batches on the leader's disk, not asked of the leader.
"""

from collections.abc import Mapping
from itertools import takewhile

from moldau.model.ids import TopicPartition
from moldau.node.node import Node
from moldau_dev.simulation.cluster.disk_log import LogOnDisk
from moldau_dev.simulation.cluster.node_state import Replica, stable_offsets_of
from moldau_dev.simulation.cluster.roster import FOLDER
from moldau_dev.simulation.simulation import Host
from moldau_dev.simulation.workload import Violation


class OpenTransactions:
    """The transactions of one log, in the order of their first batches. An end counts once it is committed."""

    def __init__(self, log: LogOnDisk) -> None:
        self.log = log
        self._taken = 0  # batches
        self._open: dict[int, int] = {}  # by producer, the first offset
        self._ended: list[tuple[int, int]] = []  # the first offset and that of the marker, by the latter

    def stable_offset(self, high_watermark: int) -> int:
        self._catch_up()
        # All are kept: in the next life of the leader the high watermark may be lower for a while.
        uncommitted = takewhile(lambda each: each[1] >= high_watermark, reversed(self._ended))
        return min([high_watermark, *self._open.values(), *(first for first, _ in uncommitted)])

    def _catch_up(self) -> None:
        if self.log.refresh() or self._taken > len(self.log.batches):
            self._taken = 0
            self._open.clear()
            self._ended.clear()
        for batch in self.log.batches[self._taken :]:
            if batch.is_control and batch.producer_id in self._open:
                self._ended.append((self._open.pop(batch.producer_id), batch.base_offset))
            elif batch.is_transactional and not batch.is_control:
                self._open.setdefault(batch.producer_id, batch.base_offset)
        self._taken = len(self.log.batches)


class StableProbe:
    """Looks at the partitions of one topic on whoever leads them."""

    def __init__(self, topic: str, hosts: Mapping[str, Host]) -> None:
        self.topic = topic
        self.looks = 0
        self._hosts = hosts
        self._logs: dict[tuple[str, TopicPartition], OpenTransactions] = {}
        self._last: dict[tuple[str, TopicPartition], tuple[Replica, int]] = {}

    def look(self, host: str, node: Node) -> None:
        for replica, stable in stable_offsets_of(node, self.topic):
            where = (host, replica.name)
            before = self._last.get(where)
            if before != (replica, stable):
                self._last[where] = (replica, stable)
                self._judge(host, replica, stable, before)

    def _judge(self, host: str, replica: Replica, stable: int, before: tuple[Replica, int] | None) -> None:
        if stable > replica.high_watermark:
            raise Violation(
                f"{replica.name} on {host}: {stable} is stable, the high watermark {replica.high_watermark}"
            )
        if before is not None and before[0].leader_epoch == replica.leader_epoch and stable < before[1]:
            raise Violation(f"{replica.name} on {host}: the last stable offset went back from {before[1]} to {stable}")
        on_disk = self._on_disk(host, replica.name)
        expected = on_disk.stable_offset(replica.high_watermark)
        if on_disk.log.end_offset != replica.end_offset:
            return  # in the middle of an append
        self.looks += 1
        if stable != expected:
            raise Violation(f"{replica.name} on {host}: {stable} is said to be stable, {expected} is")

    def _on_disk(self, host: str, name: TopicPartition) -> OpenTransactions:
        if (host, name) not in self._logs:
            self._logs[host, name] = OpenTransactions(LogOnDisk(self._hosts[host].disk, f"{FOLDER}/{name}"))
        return self._logs[host, name]
