"""A real cluster for a test: a process per node, reserved ports, temporary data directories.

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

from moldau.cli.local.layout import INTER_BROKER_PROTOCOL, LocalCluster, LocalNode
from moldau.testing.broker import READY_S_MAX, STOP_S_MAX, TEST_SETTINGS, Broker, BrokerFailed, setting_names, texts
from moldau.testing.free_ports import HOST, PortRange

if TYPE_CHECKING:
    from moldau.client.blocking_client import BlockingClient
    from moldau.testing.security import BrokerSecurity

SPARE_PORTS: Final = 5  # for nodes added later
POLL_INTERVAL_S: Final = 0.02
WAIT_S_MAX: Final = 60.0
REQUEST_TIMEOUT_MS: Final = 5_000  # short, because the node may be paused

Result = TypeVar("Result")


class Cluster:
    """Use `with Cluster() as cluster:`, or `start` and `close`. Nodes are numbered from 1.

    The first three nodes are also controllers (with one or two brokers: the first). Keyword arguments are settings of
    all nodes with `_` for `.`; `settings` takes them under their Kafka names. `security` is that of `Broker`; nodes and
    controllers then use TLS among themselves, too.
    """

    broker_class: type[Broker] = Broker

    def __init__(
        self,
        brokers: int = 3,
        *,
        data: str | Path | None = None,
        settings: Mapping[str, object] | None = None,
        security: str | None = None,
        ready_s_max: float = READY_S_MAX,
        stop_s_max: float = STOP_S_MAX,
        **named_settings: object,
    ) -> None:
        _check_count(brokers)
        self._settings = texts({**TEST_SETTINGS, **(settings or {}), **setting_names(named_settings)})
        self._ready_s_max, self._stop_s_max = ready_s_max, stop_s_max
        self._brokers: dict[int, Broker] = {}
        self._reserved = PortRange()
        self._owner = os.getpid()
        self._temporary = Path(tempfile.mkdtemp(prefix="moldau-cluster-"))
        self.data = Path(data).absolute() if data is not None else self._temporary / "data"
        self.security: BrokerSecurity | None = None
        if security is not None:
            self._secure(security)
        try:
            self._lay_out(brokers)
        except BaseException:
            self._clean_up()
            raise

    def _secure(self, kind: str) -> None:
        from moldau.testing.security import BrokerSecurity

        self.security = BrokerSecurity.create(kind, self._temporary / "certificates")
        self._settings = {
            INTER_BROKER_PROTOCOL: self.security.listener,
            **self.security.broker_settings,
            **self._settings,
        }

    @property
    def client_settings(self) -> dict[str, str]:
        """The security settings of a client, under the names of Kafka's Java clients."""
        return {} if self.security is None else dict(self.security.client_settings)

    @property
    def librdkafka_settings(self) -> dict[str, str]:
        """The security settings of a client on librdkafka, such as confluent-kafka."""
        return {} if self.security is None else dict(self.security.librdkafka_settings)

    @property
    def kafka_python_settings(self) -> dict[str, str]:
        """The security settings of kafka-python; aiokafka has the same but for `ssl_cafile`."""
        return {} if self.security is None else self.security.kafka_python_settings

    # Nodes

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of all nodes, running or not."""
        return tuple(self._brokers)

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(node for node, broker in self._brokers.items() if broker.is_running)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, running or not. Constant."""
        return self.layout.bootstrap_servers

    def __getitem__(self, node: int) -> Broker:
        """Return one node as a `Broker`, with its `data`, `log`, `pid` and `metrics`."""
        return self._brokers[node]

    def host_of(self, node: int) -> str:  # noqa: ARG002
        """Return the host of a node. Override it for clusters whose nodes run in separate networks."""
        return HOST

    # Lifecycle

    def start(self, *nodes: int) -> Self:
        """Start the given nodes (default: all that do not run) and wait until they are ready."""
        wanted = nodes or tuple(node for node in self.nodes if node not in self.running)
        self.launch(*wanted)
        deadline = time.monotonic() + self._ready_s_max
        for node in self._in_order_of_readiness(wanted, deadline):
            try:
                self[node].wait_until_ready(max(deadline - time.monotonic(), 0.0))
            except BrokerFailed as error:
                others = (other for other in self.nodes if other != node)
                error.add_note(f"Failed node: {node}.\n{self._log_tails(others)}")
                raise
        return self

    def launch(self, *nodes: int) -> None:
        """Start the given nodes without waiting."""
        for node in nodes:
            self[node].launch()

    def kill(self, *nodes: int) -> None:
        """Kill the given nodes (SIGKILL), with no delay in between."""
        for node in nodes:
            self[node].kill()

    def stop(self, *nodes: int, may_be_killed: bool = False) -> None:
        """Shut down the given nodes (default: all) and wait for them.

        Raises `BrokerFailed` if one exits with an error; `may_be_killed` accepts nodes that the test has killed.
        """
        wanted = nodes or self.running
        for node in wanted:
            self[node].terminate()
        failures = []
        for node in wanted:
            try:
                self[node].stop(may_be_killed=may_be_killed)
            except BrokerFailed as error:
                error.add_note(f"Failed node: {node}.")
                failures.append(error)
        if failures:
            raise failures[0]

    def restart(self, *nodes: int) -> None:
        """Restart the given nodes (default: all), one after the other. Nodes that were killed are only started."""
        for node in nodes or self.nodes:
            self.stop(node, may_be_killed=True)
            self.start(node)

    def pause(self, *nodes: int) -> None:
        """Freeze the given nodes (SIGSTOP): connections stay open, requests time out."""
        for node in nodes:
            self[node].pause()

    def resume(self, *nodes: int) -> None:
        """Resume the given nodes (default: all that are paused)."""
        for node in nodes or tuple(node for node in self.nodes if self[node].is_paused):
            self[node].resume()

    def add(self, count: int = 1) -> tuple[int, ...]:
        """Add brokers to the cluster, start them and return their ids."""
        _check_count(count)
        before = self.nodes
        self._lay_out(len(before) + count)
        added = tuple(node for node in self.nodes if node not in before)
        self.start(*added)
        return added

    def heal(self) -> None:
        """Resume paused nodes, start stopped ones, and wait until all replicas of all partitions are in sync."""
        self.resume()
        self.start()
        self.wait_until_in_sync()

    def close(self) -> None:
        """Stop all nodes and remove temporary files."""
        try:
            self.stop()
        finally:
            self._clean_up()

    # Requests

    def client(self) -> "BlockingClient":
        """Return a blocking client for the nodes that run and are not paused, for use in a `with` statement."""
        from moldau.client.settings import ClientSettings
        from moldau.testing.client import SocketClient

        servers = ",".join(str(self.layout.node(node).address) for node in self._responsive())
        security = None if self.security is None else self.security.client_settings
        return SocketClient(servers, ClientSettings(request_timeout_ms=REQUEST_TIMEOUT_MS), security=security)

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **config: object
    ) -> str:
        """Create a topic and return its name. The default replication factor is the number of nodes, at most three.

        Keyword arguments are topic settings with `_` for `.`. Returns once every partition has a leader in the metadata
        of every broker, so that the next request may go to any of them.
        """
        replicas = min(3, len(self.nodes)) if replication_factor is None else replication_factor
        with self.client() as client:
            configs = texts(setting_names(config))
            client.create_topic(name, partitions=partitions, replication_factor=replicas, configs=configs)
        self.wait_until(lambda: self._is_in_all_metadata(name), f"leaders of {name}")
        return name

    def _is_in_all_metadata(self, topic: str) -> bool:
        from moldau.wire.messages import MetadataRequest

        topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        with self.client() as client:
            brokers = client.run(client.asynchronous.brokers())
            views = [client.run(client.asynchronous.send(request, node=each.node_id)).topics[0] for each in brokers]
        return all(not each.error_code and all(part.leader_id >= 0 for part in each.partitions) for each in views)

    def leaders_of(self, topic: str) -> dict[int, int | None]:
        """Return the current leader of each partition; None where there is no leader."""
        with self.client() as client:
            view = client.describe_topic(topic)
        return {each.index: each.leader if each.leader >= 0 else None for each in view.partitions}

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the leader of a partition; wait until there is one and its node runs."""

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
        """The active controller, the leader of the metadata quorum. Waits until there is one."""
        return self.wait_for(self._controller, "an active controller")

    def wait_until_in_sync(self, *topics: str, wait_s: float = WAIT_S_MAX) -> None:
        """Wait until all replicas of the given topics (default: all topics) are in sync."""

        def are_in_sync() -> bool:
            with self.client() as client:
                views = client.describe_topics(topics or None)
            parts = [each for view in views for each in view.partitions]
            return all(view.error is None for view in views) and all(
                each.leader >= 0 and len(each.isr) == len(each.replicas) for each in parts
            )

        self.wait_until(are_in_sync, "all replicas in sync", wait_s)

    def wait_until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S_MAX) -> None:
        """Poll until the condition holds; failed requests count as "not yet"."""
        self.wait_for(lambda: condition() or None, what, wait_s)

    def wait_for(self, probe: Callable[[], Result | None], what: str, wait_s: float = WAIT_S_MAX) -> Result:
        """Poll until `probe` returns something other than None, and return that."""
        from moldau.model.errors import KafkaError

        deadline = time.monotonic() + wait_s
        while True:
            cause: BaseException | None = None
            try:
                found = probe()
            except (OSError, KafkaError) as error:
                found, cause = None, error
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise BrokerFailed(f"Timed out after {wait_s:g} s: {what}.\n{self._log_tails()}") from cause
            time.sleep(POLL_INTERVAL_S)

    # Context manager

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill(*self.nodes)
            self._clean_up()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # a forked child leaves the block: the cluster belongs to the parent
        if error is not None:
            if isinstance(error, BaseException):  # confluent-kafka's `KafkaError` is not one
                error.add_note(self._log_tails())
            self.kill(*self.nodes)
        self.close()

    # Internals

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
            scram_users=None if self.security is None else self.security.scram_users,
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

    def _in_order_of_readiness(self, nodes: Iterable[int], deadline: float) -> Iterator[int]:
        """Yield each node once it is ready or has exited.

        A node that waits for a failed one just times out, so the failure of the other must be reported first.
        """
        pending = {self[node].ready_fd: node for node in nodes}
        poll = select.poll()
        for descriptor in pending:
            poll.register(descriptor, select.POLLIN)
        while pending and (events := poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)):
            for descriptor, _ in events:
                poll.unregister(descriptor)
                yield pending.pop(descriptor)
        yield from pending.values()

    def _responsive(self) -> Iterable[int]:
        return [node for node in self.running if not self[node].is_paused] or self.nodes

    def _controller(self) -> int | None:
        from moldau.client.quorum import Quorum

        with self.client() as client:
            leader = client.run(Quorum(client.asynchronous).describe()).leader_id
        return leader if leader in self.running else None

    def _clean_up(self) -> None:
        """Close all nodes and remove all temporary files, even if some nodes fail; then raise the first failure."""
        failures: list[BrokerFailed] = []
        try:
            for node, broker in self._brokers.items():
                try:
                    broker.close()
                except BrokerFailed as error:
                    error.add_note(f"Failed node: {node}.")
                    failures.append(error)
        finally:
            self._reserved.release()
            shutil.rmtree(self._temporary, ignore_errors=True)
        if failures:
            raise failures[0]

    def _log_tails(self, nodes: Iterable[int] | None = None) -> str:
        return "\n".join(f"Output of node {node}:\n{self[node].log_tail}" for node in nodes or self.nodes)


def _check_count(brokers: int) -> None:
    if brokers < 1:
        raise ValueError(f"Cannot start {brokers} brokers: the number must be at least 1.")
