"""Check replication: what any leader considers committed is on every replica in the ISR, unchanged."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from moldau.machines.metadata.image import PartitionImage
from moldau.model.ids import NO_EPOCH, TopicPartition
from moldau_dev.simulation.cluster.committed_log import CommittedLog
from moldau_dev.simulation.cluster.disk_log import LogOnDisk
from moldau_dev.simulation.cluster.image_probe import Changed, ImageProbe
from moldau_dev.simulation.cluster.isr_probe import IsrProbe
from moldau_dev.simulation.cluster.node_state import Replica
from moldau_dev.simulation.cluster.topology import FOLDER, Topology
from moldau_dev.simulation.simulation import Host
from moldau_dev.simulation.workload import Violation


class ReplicaProbe:
    """Compares the replicas of every partition on all hosts with what any leader served as committed."""

    def __init__(self, tally: Counter[str], topology: Topology, hosts: Mapping[str, Host], images: ImageProbe) -> None:
        self._tally, self._topology, self._hosts, self._images = tally, topology, hosts, images
        self._ids = {spec.host: spec.node_id for spec in topology.specs}
        self._names = {spec.node_id: spec.host for spec in topology.specs}
        self._committed: dict[str, CommittedLog] = {}
        self._logs: dict[tuple[str, str], LogOnDisk] = {}
        self._last: dict[str, dict[TopicPartition, Replica]] = {name: {} for name in hosts}
        self._boots = {name: host.disk.boots for name, host in hosts.items()}
        self._doubtful: dict[str, int] = {}  # hosts that lost power, with their broker epoch at that time
        self._epochs: dict[tuple[str, str], int] = {}  # the newest leader epoch of each replica
        self.isrs = IsrProbe()
        self.ignored_topics: frozenset[str] = frozenset()  # recreated topics: one name, several logs

    def begin(self, host: str) -> None:
        self._last[host].clear()
        for (name, _), log in self._logs.items():
            if name == host:
                self._refresh(host, log, "")

    def is_doubtful(self, host: str) -> bool:
        """Whether the host lost power and has not registered again: until then its replicas do not count."""
        boots = self._hosts[host].disk.boots
        if boots != self._boots[host]:
            self._boots[host] = boots
            self._doubtful[host] = self._broker_epoch(host)
        if host in self._doubtful and self._broker_epoch(host) != self._doubtful[host]:
            del self._doubtful[host]
        return host in self._doubtful

    def check(self, host: str, replicas: Iterable[Replica], *, has_written: bool) -> None:
        last = self._last[host]
        for replica in replicas:
            before = last.get(replica.name)
            if before == replica and not has_written:
                continue
            last[replica.name] = replica
            if replica.name.topic in self.ignored_topics:
                continue
            folder = str(replica.name)
            self._epochs[host, folder] = max(replica.leader_epoch, self._epochs.get((host, folder), NO_EPOCH))
            if self._log(host, folder).refresh():
                self._tally["truncations"] += 1
                self._of(folder).forget(host)
                self._check_member(host, folder)
            if replica.is_leader:
                if before is None or (replica.proposed, replica.proposed_in) != (before.proposed, before.proposed_in):
                    self.isrs.proposed(folder, replica)
                    self._check_joining(host, folder, replica)
                self._lead(host, folder, before, replica)
            elif before is None or replica.high_watermark != before.high_watermark:
                self._of(folder).verify_follower(host, self._log(host, folder), replica.high_watermark)

    def take(self, changed: Sequence[Changed]) -> None:
        """After an ISR change: all members must have what is committed, and the leader must have requested the ISR."""
        for change in changed:
            if change.folder.rpartition("-")[0] in self.ignored_topics:
                continue
            self._check_isr(change.folder)
            self.isrs.take(change, self._images.newest)

    def compare(self, folder: str, hosts: Sequence[str]) -> None:
        """Check that all replicas are identical, byte for byte."""
        first, *others = hosts
        for host in hosts:
            self._log(host, folder).refresh()
        whole = self._log(first, folder)
        for other in others:
            copy = self._log(other, folder)
            start = max(whole.start_offset, copy.start_offset)
            if _from(whole, start) != _from(copy, start):
                raise Violation(
                    f"{folder}: {first} (end {whole.end_offset}) and {other} (end {copy.end_offset}) differ"
                )

    def describe(self) -> Iterator[str]:
        for host, replicas in self._last.items():
            for replica in replicas.values():
                yield f"{host}: {replica}"

    def _lead(self, host: str, folder: str, before: Replica | None, now: Replica) -> None:
        is_same = before is not None and before.is_leader and before.leader_epoch == now.leader_epoch
        if is_same and before is not None and now.high_watermark < before.high_watermark:
            change = f"{before.high_watermark} became {now.high_watermark}"
            raise Violation(f"{folder}: the high watermark of the leader {host} decreased: {change}")
        if not is_same or before is None or now.high_watermark == before.high_watermark:
            return
        if len(now.isr) < self._topology.min_isr:
            raise Violation(
                f"{folder}: the high watermark of {host} advanced to {now.high_watermark} with ISR {now.isr}"
            )
        self._check_epochs(host, folder, now)
        self._of(folder).advance(host, self._log(host, folder), now.high_watermark)
        self._check_isr(folder)
        self._check_proposed(host, folder, now)
        if self._topology.syncs:
            self._check_disks(host, folder, now)

    def _check_epochs(self, host: str, folder: str, now: Replica) -> None:
        """Only followers in the leader epoch count: those in an older one may still have to truncate."""
        for member in (self._names[each] for each in now.isr):
            epoch = self._epochs.get((member, folder), now.leader_epoch)
            if epoch < now.leader_epoch:
                counted = f"counting {member} in epoch {epoch}"
                raise Violation(f"{folder}: {host} commits up to {now.high_watermark} in {now.leader_epoch}, {counted}")

    def _check_proposed(self, host: str, folder: str, now: Replica) -> None:
        """Replicas with a pending join count too: for all the leader knows, they may already be in the ISR."""
        partition = self._images.partition(folder)
        if partition is None or partition.leader_epoch != now.leader_epoch:
            return
        for member in self._joining(now, partition):
            log = self._log(member, folder)
            self._refresh(member, log, folder)
            if log.end_offset < now.high_watermark and not self.is_doubtful(member):
                lacks = f"but the joining {member} ends at {log.end_offset}"
                raise Violation(f"{folder}: {host} commits up to {now.high_watermark}, {lacks}")

    def _check_joining(self, host: str, folder: str, now: Replica) -> None:
        """A joining replica has everything below the start of the leader epoch, some of which may be committed."""
        partition = self._images.partition(folder)
        if partition is None or partition.leader_epoch != now.leader_epoch:
            return
        for member in self._joining(now, partition):
            log, leaders = self._log(member, folder), self._log(host, folder)
            self._refresh(member, log, folder)
            began = next((each.base_offset for each in leaders.batches if each.leader_epoch >= now.leader_epoch), None)
            needed = leaders.end_offset if began is None else began
            if log.end_offset < needed and not self.is_doubtful(member):
                lacks = f"which ends at {log.end_offset}, before the start of the epoch at {needed}"
                raise Violation(f"{folder}: {host} requests to add {member}, {lacks}")

    def _joining(self, now: Replica, partition: PartitionImage) -> Iterator[str]:
        """Yield the hosts that the leader requests to add with their current broker epoch.

        The controller rejects requests with another broker epoch, and requests based on an outdated ISR.
        """
        for member, broker_epoch in now.proposed:
            host = self._names[member]
            if member not in (*partition.isr, *now.isr) and broker_epoch == self._broker_epoch(host):
                yield host

    def _check_disks(self, host: str, folder: str, now: Replica) -> None:
        """In synced topics, committed records are durable on all members of the ISR."""
        partition = self._images.partition(folder)
        if partition is None or partition.leader_epoch != now.leader_epoch:
            return
        for member in (self._names[each] for each in now.isr if each in partition.isr):
            log = self._log(member, folder)
            self._refresh(member, log, folder)
            if log.durable_end_offset() < now.high_watermark and not self.is_doubtful(member):
                on_disk = f"but the disk of {member} has {log.durable_end_offset()}"
                raise Violation(f"{folder}: {host} commits up to {now.high_watermark}, {on_disk}")

    def _check_isr(self, folder: str) -> None:
        partition = self._images.partition(folder)
        for member in _may_lead(partition):
            self._check_member(self._names[member], folder)

    def _check_member(self, host: str, folder: str) -> None:
        """Members of the committed ISR and ELR have everything that any leader served as committed."""
        partition = self._images.partition(folder)
        if self._ids[host] not in _may_lead(partition) or self.is_doubtful(host):
            return
        log = self._log(host, folder)
        self._refresh(host, log, folder)
        self._of(folder).require(host, log)

    def _refresh(self, host: str, log: LogOnDisk, folder: str) -> None:
        if log.refresh():
            self._tally["truncations"] += 1
            for each in [self._of(folder)] if folder else self._committed.values():
                each.forget(host)

    def _broker_epoch(self, host: str) -> int:
        broker = self._images.newest.brokers.get(self._ids[host])
        return broker.epoch if broker is not None else -1

    def _of(self, folder: str) -> CommittedLog:
        if folder not in self._committed:
            self._committed[folder] = CommittedLog(folder)
        return self._committed[folder]

    def _log(self, host: str, folder: str) -> LogOnDisk:
        where = (host, folder)
        if where not in self._logs:
            self._logs[where] = LogOnDisk(self._hosts[host].disk, f"{FOLDER}/{folder}")
        return self._logs[where]


def _may_lead(partition: PartitionImage | None) -> tuple[int, ...]:
    return (*partition.isr, *partition.eligible_leader_replicas) if partition is not None else ()


def _from(log: LogOnDisk, start_offset: int) -> list[object]:
    return [batch for batch in log.batches if batch.base_offset >= start_offset]
