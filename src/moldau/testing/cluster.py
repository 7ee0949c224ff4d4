"""A real cluster for a test: a process for each node, ports of its own, folders that go when it goes.

with Cluster(brokers=3) as cluster:
    cluster.create_topic("orders", replication_factor=3)
    cluster.kill(cluster.leader_of("orders"))
"""

import os
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from moldau.cli.local.layout import LocalCluster, LocalNode
from moldau.testing.broker import READY_S_MAX, STOP_S_MAX, TEST_SETTINGS, Broker, BrokerFailed, setting_names, texts
from moldau.testing.free_ports import HOST, PortsInARow

if TYPE_CHECKING:
    from moldau.client.blocking_client import BlockingClient

SPARE_PORTS: Final = 5  # for nodes that are added
LOOK_EVERY_S: Final = 0.02
WAIT_S_MAX: Final = 60.0
ANSWER_MS_MAX: Final = 5_000  # of a node that may be frozen

Result = TypeVar("Result")


class Cluster:
    """`with Cluster() as cluster:`, or `start` and `close` by hand. Nodes are numbered from 1.

    The first three nodes are controllers too (with one or two brokers: the first). Keyword arguments are settings of
    all nodes with `_` for `.`; `settings` takes them by their own names.
    """

    broker_class: type[Broker] = Broker

    def __init__(
        self,
        brokers: int = 3,
        *,
        data: str | Path | None = None,
        settings: Mapping[str, object] | None = None,
        ready_s_max: float = READY_S_MAX,
        stop_s_max: float = STOP_S_MAX,
        **named_settings: object,
    ) -> None:
        _check_count(brokers)
        self._settings = texts({**TEST_SETTINGS, **(settings or {}), **setting_names(named_settings)})
        self._ready_s_max, self._stop_s_max = ready_s_max, stop_s_max
        self._brokers: dict[int, Broker] = {}
        self._reserved = PortsInARow()
        self._owner = os.getpid()
        self._own_folder = Path(tempfile.mkdtemp(prefix="moldau-cluster-"))
        self.data = Path(data).absolute() if data is not None else self._own_folder / "data"
        try:
            self._lay_out(brokers)
        except BaseException:
            self._clear_away()
            raise

    # Who there is

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of all nodes, running or not."""
        return tuple(self._brokers)

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(node for node, broker in self._brokers.items() if broker.is_running)

    @property
    def bootstrap_servers(self) -> str:
        """All nodes, running or not; it stays the same."""
        return self.layout.bootstrap_servers

    def __getitem__(self, node: int) -> Broker:
        """One node as a `Broker`: its `data`, `log`, `pid`, `metrics`."""
        return self._brokers[node]

    def host_of(self, node: int) -> str:  # noqa: ARG002
        """Where a node is; for clusters whose nodes have networks of their own."""
        return HOST

    # Their lives

    def start(self, *nodes: int) -> Self:
        """Start these nodes, or all that do not run, and wait until they serve."""
        wanted = nodes or tuple(node for node in self.nodes if node not in self.running)
        self.launch(*wanted)
        deadline = time.monotonic() + self._ready_s_max
        for node in self._as_they_speak(wanted, deadline):
            try:
                self[node].wait_until_ready(max(deadline - time.monotonic(), 0.0))
            except BrokerFailed as error:
                error.add_note(
                    f"It was node {node}.\n{self._last_words(other for other in self.nodes if other != node)}"
                )
                raise
        return self

    def launch(self, *nodes: int) -> None:
        """Start these nodes and do not wait for them."""
        for node in nodes:
            self[node].launch()

    def kill(self, *nodes: int) -> None:
        """End these nodes without warning (SIGKILL), as good as at once."""
        for node in nodes:
            self[node].kill()

    def stop(self, *nodes: int, may_be_killed: bool = False) -> None:
        """Ask these nodes, or all, to end, and wait until they have. None may have ended badly, unless killed."""
        wanted = nodes or self.running
        for node in wanted:
            self[node].terminate()
        failures = []
        for node in wanted:
            try:
                self[node].stop(may_be_killed=may_be_killed)
            except BrokerFailed as error:
                error.add_note(f"It was node {node}.")
                failures.append(error)
        if failures:
            raise failures[0]

    def restart(self, *nodes: int) -> None:
        """Stop and start again, one after the other; all if none is named. Those that were killed are only started."""
        for node in nodes or self.nodes:
            self.stop(node, may_be_killed=True)
            self.start(node)

    def pause(self, *nodes: int) -> None:
        """Freeze these nodes (SIGSTOP): connections stay open, nothing answers."""
        for node in nodes:
            self[node].pause()

    def resume(self, *nodes: int) -> None:
        """Let these go on, or all that are frozen."""
        for node in nodes or tuple(node for node in self.nodes if self[node].is_paused):
            self[node].resume()

    def add(self, count: int = 1) -> tuple[int, ...]:
        """Start new brokers beside those there are; their ids."""
        _check_count(count)
        known = self.nodes
        self._lay_out(len(known) + count)
        fresh = tuple(node for node in self.nodes if node not in known)
        self.start(*fresh)
        return fresh

    def heal(self) -> None:
        """Resume what is paused, start what is dead, and wait until every partition has all its replicas in sync."""
        self.resume()
        self.start()
        self.wait_until_in_sync()

    def close(self) -> None:
        """Stop all nodes and remove what was temporary."""
        try:
            self.stop()
        finally:
            self._clear_away()

    # What they say

    def client(self) -> "BlockingClient":
        """A blocking client of the nodes that run and are not frozen, to use in a `with`."""
        from moldau.client.settings import ClientSettings
        from moldau.testing.client import AskingClient

        servers = ",".join(str(self.layout.node(node).address) for node in self._answering())
        return AskingClient(servers, ClientSettings(request_timeout_ms=ANSWER_MS_MAX))

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **config: object
    ) -> str:
        """Create a topic, with as many replicas as there are nodes (three at most) if not said otherwise.

        Keyword arguments are its settings with `_` for `.`. When this returns, each partition has its leader, and every
        broker knows that, whichever is asked next.
        """
        replicas = min(3, len(self.nodes)) if replication_factor is None else replication_factor
        with self.client() as client:
            configs = texts(setting_names(config))
            client.create_topic(name, partitions=partitions, replication_factor=replicas, configs=configs)
        self.wait_until(lambda: self._is_known_to_all(name), f"leaders of {name}")
        return name

    def _is_known_to_all(self, topic: str) -> bool:
        from moldau.wire.messages import MetadataRequest

        asked = MetadataRequest.MetadataRequestTopic(name=topic)
        request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
        with self.client() as client:
            brokers = client.run(client.asynchronous.brokers())
            told = [client.run(client.asynchronous.send(request, node=each.node_id)).topics[0] for each in brokers]
        return all(not each.error_code and all(part.leader_id >= 0 for part in each.partitions) for each in told)

    def leaders_of(self, topic: str) -> dict[int, int | None]:
        """Who leads each partition just now; None where nobody does."""
        with self.client() as client:
            view = client.describe_topic(topic)
        return {each.index: each.leader if each.leader >= 0 else None for each in view.partitions}

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition; waits until somebody does who runs."""

        def leader() -> int | None:
            node = self.leaders_of(topic).get(partition)
            return node if node in self.running else None

        return self.wait_for(leader, f"a leader of {topic}-{partition}")

    def isr_of(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        with self.client() as client:
            view = client.describe_topic(topic).partition(partition)
        return tuple(sorted(view.isr)) if view is not None else ()

    @property
    def controller_id(self) -> int:
        """The active controller: who leads the metadata quorum. Waits until there is one."""
        return self.wait_for(self._controller, "an active controller")

    def wait_until_in_sync(self, *topics: str, wait_s: float = WAIT_S_MAX) -> None:
        """Until every replica of these topics, or of all, is in sync."""

        def are_in_sync() -> bool:
            with self.client() as client:
                views = client.describe_topics(topics or None)
            parts = [each for view in views for each in view.partitions]
            return all(view.error is None for view in views) and all(
                each.leader >= 0 and len(each.isr) == len(each.replicas) for each in parts
            )

        self.wait_until(are_in_sync, "all replicas in sync", wait_s)

    def wait_until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S_MAX) -> None:
        """Look again and again, over failures to get an answer, until it holds."""
        self.wait_for(lambda: condition() or None, what, wait_s)

    def wait_for(self, look: Callable[[], Result | None], what: str, wait_s: float = WAIT_S_MAX) -> Result:
        """The first thing other than None that `look` finds."""
        from moldau.model.errors import KafkaError

        deadline = time.monotonic() + wait_s
        while True:
            trouble: BaseException | None = None
            try:
                found = look()
            except (OSError, KafkaError) as error:
                found, trouble = None, error
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise BrokerFailed(f"Not within {wait_s:g} s: {what}.\n{self._last_words()}") from trouble
            time.sleep(LOOK_EVERY_S)

    # As a context

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill(*self.nodes)
            self._clear_away()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # as with a broker: a process that was forked in the block has none of it
        if error is not None:
            if isinstance(error, BaseException):  # or else it is a `KafkaError` of confluent-kafka
                error.add_note(self._last_words())
            self.kill(*self.nodes)
        self.close()

    # Inside

    def _lay_out(self, brokers: int) -> None:
        is_new = not self._brokers
        ports = self._reserved.draw(2 * brokers + SPARE_PORTS) if is_new else None
        self.layout = LocalCluster.open(
            self.data,
            brokers=brokers,
            port=ports.start + brokers if ports else None,
            controller_port=ports.start if ports else None,
            host_of=self.host_of,
            settings=self._settings,
        )
        for node in self.layout.nodes:
            if node.node_id not in self._brokers:
                self._brokers[node.node_id] = self._broker(node)

    def _broker(self, node: LocalNode) -> Broker:
        return self.broker_class(
            data=node.folder,
            listen=None,
            settings=node.settings,
            ready_s_max=self._ready_s_max,
            stop_s_max=self._stop_s_max,
        )

    def _as_they_speak(self, nodes: Iterable[int], deadline: float) -> Iterator[int]:
        """Each node once it serves or has ended: one that waits for others says nothing, they may have said why."""
        silent = {self[node].announced: node for node in nodes}
        watched = select.poll()
        for descriptor in silent:
            watched.register(descriptor, select.POLLIN)
        while silent and (heard := watched.poll(max(deadline - time.monotonic(), 0.0) * 1000)):
            for descriptor, _ in heard:
                watched.unregister(descriptor)
                yield silent.pop(descriptor)
        yield from silent.values()

    def _answering(self) -> Iterable[int]:
        return [node for node in self.running if not self[node].is_paused] or self.nodes

    def _controller(self) -> int | None:
        from moldau.client.quorum import Quorum

        with self.client() as client:
            leader = client.run(Quorum(client.asynchronous).describe()).leader_id
        return leader if leader in self.running else None

    def _clear_away(self) -> None:
        """Nothing temporary stays, though nodes may have ended badly; the first of those is told of then."""
        failures: list[BrokerFailed] = []
        try:
            for node, broker in self._brokers.items():
                try:
                    broker.close()
                except BrokerFailed as error:
                    error.add_note(f"It was node {node}.")
                    failures.append(error)
        finally:
            self._reserved.release()
            shutil.rmtree(self._own_folder, ignore_errors=True)
        if failures:
            raise failures[0]

    def _last_words(self, nodes: Iterable[int] | None = None) -> str:
        return "\n".join(f"Node {node} said:\n{self[node].last_words}" for node in nodes or self.nodes)


def _check_count(brokers: int) -> None:
    if brokers < 1:
        raise ValueError(f"{brokers} brokers cannot be started: say how many, at least one.")
