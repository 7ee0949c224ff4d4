"""Looks into the nodes after every event: whoever has just run may have broken a promise."""

import random
from collections.abc import Callable, Mapping

from moldau.machines.metadata.image import PartitionImage
from moldau.model.ids import TopicId, TopicPartition
from moldau.node.node import Node
from moldau_dev.simulation.cluster.image_probe import ImageProbe
from moldau_dev.simulation.cluster.node_state import copies_of, image_of, quorum_of, replicas_of
from moldau_dev.simulation.cluster.quorum_probe import QuorumProbe
from moldau_dev.simulation.cluster.replica_probe import ReplicaProbe
from moldau_dev.simulation.cluster.roster import Roster
from moldau_dev.simulation.cluster.strikes import Aim
from moldau_dev.simulation.cluster.unclean_probe import UncleanProbe
from moldau_dev.simulation.lifetime import Life
from moldau_dev.simulation.simulation import Host, Simulation
from moldau_dev.simulation.workload import TOPIC


class Watch:
    """Knows every node's insides and the newest committed metadata; the probes do the judging."""

    def __init__(self, simulation: Simulation, roster: Roster, hosts: Mapping[str, Host]) -> None:
        self.simulation, self.roster, self.hosts = simulation, roster, hosts
        self._ids = {seat.host: seat.node_id for seat in roster.seats}
        self._names = {seat.node_id: seat.host for seat in roster.seats}
        self._nodes: dict[str, Node] = {}
        self._lives: dict[str, str] = {}  # the host of a life
        self._points: dict[str, int] = {}
        self.images = ImageProbe(simulation.tally)
        voters = [seat.host for seat in roster.seats if seat.is_controller]
        self.quorum = QuorumProbe(simulation.tally, hosts, voters)
        self.replicas = ReplicaProbe(simulation.tally, roster, hosts, self.images)
        self.unclean = UncleanProbe(hosts, self._ids)
        self.more: tuple[Callable[[str, Node], None], ...] = ()  # who else looks into a node
        self.aims: tuple[str, ...] = (TOPIC,)  # the topics whose leaders and followers are struck
        simulation.loop.after_event = self._look

    def begin(self, host: str, node: Node) -> None:
        """A process starts on a host."""
        self._nodes[host] = node
        self._lives[f"{host}#{self.hosts[host].starts}"] = host
        self.quorum.begin(host)
        self.replicas.begin(host)
        self.unclean.begin(host)

    def close(self) -> None:
        self.simulation.loop.after_event = None
        self.simulation.tally["looks at who joined"] += self.replicas.isrs.looks
        self.simulation.tally["looks at who lost power"] += self.unclean.looks

    def _look(self, life: Life | None) -> None:
        host = self._lives.get(life.name) if life is not None else None
        if host is None or life is None or not life.is_alive:
            return
        node = self._nodes[host]
        image = image_of(node)
        if image is None:
            return
        has_written = self.hosts[host].disk.points != self._points.get(host)
        self._points[host] = self.hosts[host].disk.points
        quorum = quorum_of(node)
        if quorum is not None:
            self.quorum.look(host, quorum, has_written=has_written)
        changed = self.images.look(image)
        self.replicas.look(host, replicas_of(node), has_written=has_written)
        if changed:
            self.replicas.take(changed)
        self.unclean.look(host, node.broker.incarnation_id, self.images.newest)
        for look in self.more:
            look(host, node)

    # For chaos

    def find(self, aim: Aim, chance: random.Random) -> str | None:
        """Who is what now; None if nobody is."""
        if aim is Aim.CONTROLLER:
            return self.quorum.leader
        partitions = [each for topic in self.aims for each in self._partitions(topic)]
        if aim is Aim.ANYBODY or not partitions:
            return None
        partition = chance.choice(partitions)
        if aim is Aim.LEADER:
            return self._names.get(partition.leader)
        followers = [each for each in partition.replicas if each != partition.leader]
        return self._names[chance.choice(followers)] if followers else None

    def has_recovered(self, *, except_for: str) -> bool:
        """Whether all replicas are in sync and nobody else is about to lose power."""
        mine = self._ids[except_for]
        others = [host for name, host in self.hosts.items() if name != except_for]
        return not any(host.disk.plans_power_loss or self.replicas.is_doubtful(host.name) for host in others) and all(
            set(each.replicas) - set(each.isr) <= {mine} for each in self._partitions()
        )

    # After healing

    def is_at_rest(self) -> bool:
        """All brokers serve, every partition has a leader, all its replicas in sync and all that was written seen; and
        none is on its way, or where it does not belong."""
        image = self.images.newest
        brokers = [seat.node_id for seat in self.roster.seats if seat.is_broker]
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
        """Every replica has the same bytes, from its start to its end."""
        image = self.images.newest
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                names = [self._names[replica] for replica in partition.replicas]
                self.replicas.compare(f"{topic.name}-{index}", names)

    def describe(self) -> str:
        """For a failure: who is up and what the newest metadata says."""
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
