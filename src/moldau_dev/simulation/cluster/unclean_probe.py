"""The promise of registration: whoever lost power in the midst of its work counts for nothing before it caught up."""

from collections.abc import Mapping

from moldau.machines.metadata.image import MetadataImage
from moldau.storage.log_dir import CLEAN_SHUTDOWN
from moldau_dev.simulation.cluster.roster import FOLDER
from moldau_dev.simulation.simulation import Host
from moldau_dev.simulation.workload import Violation


class UncleanProbe:
    """Remembers who lost power and had not ended well before, and looks where it stands when it is registered again."""

    def __init__(self, hosts: Mapping[str, Host], ids: Mapping[str, int]) -> None:
        self.looks = 0
        self._hosts, self._ids = hosts, ids
        self._boots = {name: host.disk.boots for name, host in hosts.items()}
        self._unclean: set[str] = set()

    def begin(self, host: str) -> None:
        """A process is about to start."""
        disk = self._hosts[host].disk
        if disk.boots != self._boots[host] and disk.node(f"{FOLDER}/{CLEAN_SHUTDOWN}") is None:
            self._unclean.add(host)
        self._boots[host] = disk.boots

    def look(self, host: str, incarnation: bytes, newest: MetadataImage) -> None:
        """The process that runs on a host has just done something."""
        if host not in self._unclean:
            return
        broker = newest.brokers.get(self._ids[host])
        if broker is None or broker.incarnation_id != incarnation:
            return  # it is not registered yet, or only in its last life
        self._unclean.discard(host)
        self.looks += 1
        for topic in newest.topics.values():
            for index, partition in enumerate(topic.partitions):
                if broker.broker_id in (*partition.isr, *partition.eligible_leader_replicas):
                    raise Violation(f"{topic.name}-{index}: {host} lost power, and is counted on: {partition}")
