"""Checks the node that has just run, after every event."""

import random
from collections.abc import Callable, Mapping

from moldau.machines.metadata.image import PartitionImage
from moldau.model.ids import TopicId, TopicPartition
from moldau.node.node import Node
from moldau_dev.simulation.cluster.cluster_faults import Target
from moldau_dev.simulation.cluster.image_probe import ImageProbe
from moldau_dev.simulation.cluster.node_state import copies_of, image_of, quorum_of, replicas_of
from moldau_dev.simulation.cluster.quorum_probe import QuorumProbe
from moldau_dev.simulation.cluster.replica_probe import ReplicaProbe
from moldau_dev.simulation.cluster.topology import Topology
from moldau_dev.simulation.cluster.unclean_probe import UncleanProbe
from moldau_dev.simulation.process import SimulatedProcess
from moldau_dev.simulation.simulation import Host, Simulation
from moldau_dev.simulation.workload import TOPIC


class Observer:
    """Passes the state of nodes and the newest committed metadata to the probes, which check it."""

    def __init__(self, simulation: Simulation, topology: Topology, hosts: Mapping[str, Host]) -> None:
        self.simulation, self.topology, self.hosts = simulation, topology, hosts
        self._ids = {spec.host: spec.node_id for spec in topology.specs}
        self._names = {spec.node_id: spec.host for spec in topology.specs}
        self._nodes: dict[str, Node] = {}
        self._process_hosts: dict[str, str] = {}  # process name to host
        self._points: dict[str, int] = {}
        self.images = ImageProbe(simulation.tally)
        voters = [spec.host for spec in topology.specs if spec.is_controller]
        self.quorum = QuorumProbe(simulation.tally, hosts, voters)
        self.replicas = ReplicaProbe(simulation.tally, topology, hosts, self.images)
        self.unclean = UncleanProbe(hosts, self._ids)
        self.more: tuple[Callable[[str, Node], None], ...] = ()  # further checks of a node
        self.target_topics: tuple[str, ...] = (TOPIC,)  # the topics whose leaders and followers are targets
        simulation.loop.after_event = self._check_after_event

    def begin(self, host: str, node: Node) -> None:
        """Register the node of a new process."""
        self._nodes[host] = node
        self._process_hosts[f"{host}#{self.hosts[host].starts}"] = host
        self.quorum.begin(host)
        self.replicas.begin(host)
        self.unclean.begin(host)

    def close(self) -> None:
        self.simulation.loop.after_event = None
        self.simulation.tally["ISR join checks"] += self.replicas.isrs.checks
        self.simulation.tally["power loss checks"] += self.unclean.checks

    def _check_after_event(self, process: SimulatedProcess | None) -> None:
        host = self._process_hosts.get(process.name) if process is not None else None
        if host is None or process is None or not process.is_alive:
            return
        node = self._nodes[host]
        image = image_of(node)
        if image is None:
            return
        has_written = self.hosts[host].disk.points != self._points.get(host)
        self._points[host] = self.hosts[host].disk.points
        quorum = quorum_of(node)
        if quorum is not None:
            self.quorum.check(host, quorum, has_written=has_written)
        changed = self.images.check(image)
        self.replicas.check(host, replicas_of(node), has_written=has_written)
        if changed:
            self.replicas.take(changed)
        self.unclean.check(host, node.broker.incarnation_id, self.images.newest)
        for check in self.more:
            check(host, node)

    def running_nodes(self) -> list[Node]:
        """The nodes of live processes that have started."""
        return [node for host, node in self._nodes.items() if self.hosts[host].is_up and image_of(node) is not None]

    # For chaos

    def find(self, target: Target, rng: random.Random) -> str | None:
        """Return the host that currently has a role; None if there is none."""
        if target is Target.CONTROLLER:
            return self.quorum.leader
        partitions = [each for topic in self.target_topics for each in self._partitions(topic)]
        if target is Target.ANY or not partitions:
            return None
        partition = rng.choice(partitions)
        if target is Target.LEADER:
            return self._names.get(partition.leader)
        followers = [each for each in partition.replicas if each != partition.leader]
        return self._names[rng.choice(followers)] if followers else None

    def has_recovered(self, *, except_for: str) -> bool:
        """Whether all replicas are in sync and no other host is about to lose power."""
        excepted = self._ids[except_for]
        others = [host for name, host in self.hosts.items() if name != except_for]
        return not any(host.disk.plans_power_loss or self.replicas.is_doubtful(host.name) for host in others) and all(
            set(each.replicas) - set(each.isr) <= {excepted} for each in self._partitions()
        )

    # After healing

    def is_at_rest(self) -> bool:
        """Whether all brokers are active, all replicas in sync, all records committed, no replica moving or stray."""
        image = self.images.newest
        brokers = [spec.node_id for spec in self.topology.specs if spec.is_broker]
        return (
            all(image.is_active(broker) for broker in brokers)
            and all(self._is_settled(each) for each in self._partitions())
            and all(
                replica.high_watermark == replica.end_offset
                for node in self._nodes.values()
                for replica in replicas_of(node)
            )
            and all(self._belongs(host, *copy) for host, node in self._nodes.items() for copy in copies_of(node))
        )

    def compare_replicas(self) -> None:
        """Check that all replicas of each partition are identical."""
        image = self.images.newest
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                names = [self._names[replica] for replica in partition.replicas]
                self.replicas.compare(f"{topic.name}-{index}", names)

    def describe(self) -> str:
        """Describe hosts, metadata and replicas for a failure message."""
        up = {
            name: ("paused" if host.is_paused else "up" if host.is_up else "down") for name, host in self.hosts.items()
        }
        lines = [f"hosts: {up}; quorum leader: {self.quorum.leader}"]
        for topic in self.images.newest.topics.values():
            for index, each in enumerate(topic.partitions):
                lines.append(f"{topic.name}-{index}: leader {each.leader}, ISR {each.isr}, replicas {each.replicas}")
        brokers = {
            each.broker_id: "active" if each.is_active else "fenced" for each in self.images.newest.brokers.values()
        }
        return "\n".join([*lines, f"brokers: {brokers}", *self.replicas.describe()])

    def _is_settled(self, partition: PartitionImage) -> bool:
        is_in_sync = partition.has_leader and sorted(partition.isr) == sorted(partition.replicas)
        return is_in_sync and not partition.is_moving

    def _belongs(self, host: str, name: TopicPartition, topic_id: TopicId) -> bool:
        topic = self.images.newest.topics.get(name.topic)
        if topic is None or topic.topic_id != topic_id or name.partition >= len(topic.partitions):
            return False
        return self._ids[host] in topic.partitions[name.partition].replicas

    def _partitions(self, topic: str | None = None) -> list[PartitionImage]:
        topics = self.images.newest.topics
        chosen = topics.values() if topic is None else [topics[topic]] if topic in topics else []
        return [partition for each in chosen for partition in each.partitions]
