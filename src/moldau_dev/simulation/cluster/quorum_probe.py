"""Check Raft's guarantees: one leader per epoch, and committed records stay in every log that can lead."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from moldau.broker.drivers.metadata_snapshots import SUFFIX
from moldau.broker.drivers.quorum_state import FILE_NAME, QuorumState
from moldau.machines.raft import ElectionState
from moldau.model.ids import NO_NODE
from moldau.testing.inodes import Folder, Inode
from moldau_dev.simulation.cluster.committed_log import CommittedLog
from moldau_dev.simulation.cluster.disk_log import LogOnDisk
from moldau_dev.simulation.cluster.node_state import Quorum
from moldau_dev.simulation.cluster.topology import FOLDER
from moldau_dev.simulation.simulation import Host
from moldau_dev.simulation.workload import Violation

METADATA: Final = "__cluster_metadata-0"


class QuorumProbe:
    """Compares the metadata logs of all nodes with all that was ever committed."""

    def __init__(self, tally: Counter[str], hosts: Mapping[str, Host], voters: Sequence[str] = ()) -> None:
        self._tally, self._voters = tally, voters
        self._disks = {name: host.disk for name, host in hosts.items()}
        self._logs = {name: LogOnDisk(host.disk, f"{FOLDER}/{METADATA}") for name, host in hosts.items()}
        self._committed = CommittedLog(METADATA)
        self._leaders: dict[int, str] = {}
        self._last: dict[str, Quorum] = {}

    @property
    def leader(self) -> str | None:
        """The host elected last, alive or not."""
        return self._leaders[max(self._leaders)] if self._leaders else None

    def begin(self, host: str) -> None:
        """Reset the last state: a new process may have lost unpersisted state, which was never sent."""
        self._last.pop(host, None)

    def check(self, host: str, now: Quorum, *, has_written: bool) -> None:
        before = self._last.get(host)
        if now == before and not has_written:
            return
        self._last[host] = now
        log = self._logs[host]
        if log.refresh():
            self._tally["metadata truncations"] += 1
            self._committed.forget(host)
        _check_start(host, log)
        if before is not None and now.epoch < before.epoch:
            raise Violation(f"{host}: quorum epoch {before.epoch} became {now.epoch}")
        if now.persisted is not None and (before is None or now.persisted != before.persisted):
            self._check_persisted(host, now.persisted)
        if before is not None and now.high_watermark < before.high_watermark:
            raise Violation(f"{host}: quorum high watermark {before.high_watermark} became {now.high_watermark}")
        if now.is_leader:
            self._lead(host, now, log)
            if before is not None and before.is_leader and before.high_watermark < now.high_watermark:
                self._check_commit(host, now, log)
        self._committed.advance(host, log, now.high_watermark)

    def _check_persisted(self, host: str, persisted: ElectionState) -> None:
        """An epoch or vote that may have been sent to others is durable."""
        folder = self._disks[host].node(f"{FOLDER}/{METADATA}")
        file = folder.durable.get(FILE_NAME) if isinstance(folder, Folder) else None
        on_disk = QuorumState.decode(bytes(file.durable)) if isinstance(file, Inode) else QuorumState()
        voted_id = persisted.voted.node_id if persisted.voted is not None else NO_NODE
        if (on_disk.leader_epoch, on_disk.voted_id) != (persisted.epoch, voted_id):
            raise Violation(f"{host} voted for {voted_id} in epoch {persisted.epoch}, but its disk has {on_disk}")

    def _check_commit(self, host: str, now: Quorum, log: LogOnDisk) -> None:
        """A leader commits only with a record of its own epoch, and only what a majority has on disk."""
        below = bisect_left(log.batches, (now.high_watermark,))
        if below and log.batches[below - 1].leader_epoch != now.epoch:
            last = log.batches[below - 1]
            raise Violation(f"{host} leads in epoch {now.epoch} and commits up to {last} of an older epoch")
        for voter in self._voters:
            self._logs[voter].refresh()
        ends = {voter: _durable_end_offset(self._logs[voter]) for voter in self._voters}
        held = sum(end >= now.high_watermark for end in ends.values())
        if held <= len(ends) // 2 and ends:
            raise Violation(f"{host} commits metadata up to {now.high_watermark}, but the disks have {ends}")

    def _lead(self, host: str, now: Quorum, log: LogOnDisk) -> None:
        leader = self._leaders.setdefault(now.epoch, host)
        if leader != host:
            raise Violation(f"{leader} and {host} lead the quorum in epoch {now.epoch}")
        if len(self._leaders) > self._tally["elections"]:
            self._tally["elections"] += 1
            self._committed.require(host, log)


def _check_start(host: str, log: LogOnDisk) -> None:
    """A durable snapshot covers everything below the log start offset."""
    snapshot_offset = _snapshot_offset(log)
    if snapshot_offset < log.start_offset:
        raise Violation(
            f"{host}: {METADATA} starts at {log.start_offset}, but its durable snapshots end at {snapshot_offset}"
        )


def _durable_end_offset(log: LogOnDisk) -> int:
    """Return the durable end offset; records covered by a snapshot need not be in the log."""
    return log.durable_end_offset(_snapshot_offset(log))


def _snapshot_offset(log: LogOnDisk) -> int:
    """Return the end offset of the newest durable snapshot."""
    return max((int(name.partition("-")[0]) for name in log.durable_files if name.endswith(SUFFIX)), default=0)
