"""Check registration: a broker that lost power without a clean shutdown leaves all ISRs and ELRs."""

from collections.abc import Mapping

from moldau.machines.metadata.image import MetadataImage
from moldau.storage.log_dir import CLEAN_SHUTDOWN
from moldau_dev.simulation.cluster.topology import FOLDER
from moldau_dev.simulation.simulation import Host
from moldau_dev.simulation.workload import Violation


class UncleanProbe:
    """Records hosts with an unclean power loss, and checks their ISRs when they have registered again."""

    def __init__(self, hosts: Mapping[str, Host], ids: Mapping[str, int]) -> None:
        self.checks = 0
        self._hosts, self._ids = hosts, ids
        self._boots = {name: host.disk.boots for name, host in hosts.items()}
        self._unclean: set[str] = set()

    def begin(self, host: str) -> None:
        """Handle the start of a process."""
        disk = self._hosts[host].disk
        if disk.boots != self._boots[host] and disk.node(f"{FOLDER}/{CLEAN_SHUTDOWN}") is None:
            self._unclean.add(host)
        self._boots[host] = disk.boots

    def check(self, host: str, incarnation: bytes, newest: MetadataImage) -> None:
        """Check the host after an event of its process."""
        if host not in self._unclean:
            return
        broker = newest.brokers.get(self._ids[host])
        if broker is None or broker.incarnation_id != incarnation:
            return  # not registered yet, or only its previous process
        self._unclean.discard(host)
        self.checks += 1
        for topic in newest.topics.values():
            for index, partition in enumerate(topic.partitions):
                if broker.broker_id in (*partition.isr, *partition.eligible_leader_replicas):
                    raise Violation(
                        f"{topic.name}-{index}: {host} lost power, but is still in the ISR or ELR: {partition}"
                    )
