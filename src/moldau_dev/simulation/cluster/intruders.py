"""Peers of a secured cluster that must not change anything, and a user whose permission comes and goes.

Nodes authenticate to each other by SASL, and an authorizer decides by ACLs. `mallory` has a password and no ACL; other
peers have not authenticated, or only began to. They send changes of every kind to the listeners of brokers and
controllers. `alice` writes to a topic while an administrator grants and revokes her permission.

Checked with every new metadata image: nothing in it comes from an intruder. Checked with alice's writes: none is
accepted once the revocation is in effect on all nodes that are up. Checked in the end, in the log itself: it has all of
alice's acknowledged records, none of her rejected ones, and none of mallory's.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.client.acls import Acls
from moldau.client.async_client import AsyncClient
from moldau.client.sasl import PlainLogin
from moldau.client.security import ClientSecurity
from moldau.client.settings import ClientSettings
from moldau.machines.access.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from moldau.machines.access.plain import plain_message
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address
from moldau.model.listeners import SecurityProtocol
from moldau.model.ports import Connection, Ports
from moldau.model.units import MiB
from moldau.node.node import Node
from moldau.records.builder import build_batch
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire import messages
from moldau.wire.framing import RequestHeader, frame_request
from moldau_dev.simulation.cluster.hostile_changes import HOSTILE_CONFIGS, changes_of
from moldau_dev.simulation.cluster.observer import Observer
from moldau_dev.simulation.cluster.topology import CONTROLLER_PORT, NodeSpec, Topology
from moldau_dev.simulation.simulation import Inconclusive, Simulation
from moldau_dev.simulation.workload import Ledger, Violation

SECURE_PORT: Final = 9094
GUARDED: Final = "guarded"
ANONYMOUS: Final = "User:ANONYMOUS"
ALICE: Final = "User:alice"
REVOKED: Final = "permission revoked"
REVOCATIONS_MIN: Final = 2
DENIED_MIN: Final = 3
WRITE_PAUSE_S_MEAN: Final = 0.1
PERMISSION_S: Final = (1.0, 4.0)
PROPAGATION_S_MAX: Final = 10.0
INTRUSION_PAUSE_S_MEAN: Final = 0.2
INTRUDER_S: Final = 2.0  # how long an intruder waits before it closes the connection
AUDIT_WAIT_MS: Final = 100

_PASSWORDS: Final = {"node": "pw-n", "admin": "pw-admin", "alice": "pw-a", "mallory": "pw-m"}
_LOGIN: Final = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="node" password="pw-n" '
_JAAS: Final = _LOGIN + " ".join(f'user_{name}="{password}"' for name, password in _PASSWORDS.items()) + ";"
_SETTINGS: Final = {
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,SECURE:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "SECURE",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.secure.plain.sasl.jaas.config": _JAAS,
    "listener.name.controller.plain.sasl.jaas.config": _JAAS,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:node;User:admin",
}


class SecuredTopology(Topology):
    """A topology whose brokers have a SASL listener for nodes and users, beside the plain one of the other clients."""

    def settings_of(self, spec: NodeSpec) -> dict[str, str]:
        secure = f",SECURE://{spec.host}:{SECURE_PORT}" if spec.is_broker else ""
        settings = super().settings_of(spec)
        return {**settings, **_SETTINGS, "listeners": settings["listeners"] + secure}

    @property
    def secure_bootstrap(self) -> list[Address]:
        return [Address(spec.host, SECURE_PORT) for spec in self.specs if spec.is_broker]


def secured(topology: Topology) -> SecuredTopology:
    """The same topology with authentication and authorization."""
    return SecuredTopology(**{name: getattr(topology, name) for name in Topology.__dataclass_fields__})


class Intruders:
    """A fault injector: the intruders, alice and her administrator, each on its own host."""

    def __init__(self, simulation: Simulation, observer: Observer, topology: SecuredTopology, ledger: Ledger) -> None:
        self._simulation, self._observer, self._topology, self._ledger = simulation, observer, topology, ledger
        self._rng = simulation.rng("intruders")
        self._turn = asyncio.Lock()  # alice does not write while the permission is about to change
        self._is_revoked = True
        self._checked: MetadataImage | None = None
        self._known_topics: set[str] = {GUARDED}
        self._ids = {spec.node_id for spec in topology.specs}
        self._number = 0
        self.acknowledged: set[int] = set()
        self.denied: set[int] = set()
        observer.more = (*observer.more, self._check)

    def expect_topics(self, *names: str) -> None:
        """Name the topics that the other clients create."""
        self._known_topics |= set(names)

    def has_done_enough(self) -> bool:
        return (
            self._simulation.fired[REVOKED] >= REVOCATIONS_MIN
            and len(self.denied) >= DENIED_MIN
            and bool(self.acknowledged)
        )

    def count(self) -> None:
        """Raise `Inconclusive` if too little happened."""
        self._simulation.tally["denied writes"] += len(self.denied)
        self._simulation.tally["granted writes"] += len(self.acknowledged)
        if not self.has_done_enough():
            raise Inconclusive(
                f"seed {self._simulation.seed} is inconclusive: {self._simulation.fired[REVOKED]} revocations, "
                f"{len(self.acknowledged)} granted and {len(self.denied)} denied writes"
            )

    # -- preparation

    async def prepare(self) -> None:
        """Let the other clients do what they do elsewhere, and create the guarded topic."""

        async def program(ports: Ports) -> None:
            async with self._client(ports, "admin") as admin:
                kinds = (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID)
                acls = [_acl(kind, "*", ANONYMOUS, Operation.ALL) for kind in kinds]
                acls.append(_acl(ResourceKind.TOPIC, GUARDED, ALICE, Operation.DESCRIBE))  # to find the leader
                await self._retry(lambda: Acls(admin).create(acls))
                replicas, configs = self._topology.replicas, self._topology.topic_settings
                await self._retry(
                    lambda: admin.create_topic(GUARDED, partitions=1, replication_factor=replicas, configs=configs)
                )
            while not all(len(image.acls) == len(acls) for image in self._applied_images()):
                await asyncio.sleep(0.1)

        await self._simulation.host("security-setup").start(program)

    async def _retry(self, call: Callable[[], Any]) -> None:
        while True:
            try:
                await call()
                return
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    return
                await self._ledger.back_off(error)

    # -- under faults

    async def run(self, is_active: Callable[[], bool]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, play in (
                ("security-admin", self._grant_and_revoke),
                ("alice", self._write),
                ("mallory", self._intrude),
            ):
                tasks.create_task(self._simulation.host(name).start(self._program(play, is_active)))

    def _program(self, play: Callable[[Ports, Callable[[], bool]], Any], is_active: Callable[[], bool]) -> Any:
        return lambda ports: play(ports, is_active)

    async def _grant_and_revoke(self, ports: Ports, is_active: Callable[[], bool]) -> None:
        granted = _acl(ResourceKind.TOPIC, GUARDED, ALICE, Operation.WRITE)
        async with self._client(ports, "admin") as admin:
            while is_active():
                async with self._turn:
                    self._is_revoked = False
                await self._try(Acls(admin).create([granted]))
                await asyncio.sleep(self._rng.uniform(*PERMISSION_S))
                await self._try(Acls(admin).delete([AclFilter(principal=ALICE, operation=Operation.WRITE)]))
                if await self._is_in_effect():
                    async with self._turn:
                        self._is_revoked = not _allows_alice(self._observer.images.newest)
                    if self._is_revoked:
                        self._simulation.count(REVOKED, "")
                await asyncio.sleep(self._rng.uniform(*PERMISSION_S))

    async def _try(self, work: Any) -> None:
        try:
            await work
        except (OSError, KafkaError):
            return  # whether it had an effect shows in the images

    async def _is_in_effect(self) -> bool:
        """Wait until no node that is up has the permission."""
        deadline_s = self._simulation.now_s + PROPAGATION_S_MAX
        while self._simulation.now_s < deadline_s:
            images = [*self._applied_images(), self._observer.images.newest]
            if not any(_allows_alice(image) for image in images):
                return True
            await asyncio.sleep(0.1)
        return False

    async def _write(self, ports: Ports, is_active: Callable[[], bool]) -> None:
        async with self._client(ports, "alice") as alice:
            while is_active():
                await asyncio.sleep(self._rng.expovariate(1.0) * WRITE_PAUSE_S_MEAN)
                async with self._turn:
                    await self._write_one(alice)

    async def _write_one(self, alice: AsyncClient) -> None:
        self._number += 1
        number, was_revoked = self._number, self._is_revoked
        batch = build_batch([(0, None, b"alice %d" % number, ())])
        try:
            await alice.produce(GUARDED, 0, batch)
        except (OSError, KafkaError) as error:
            if isinstance(error, KafkaError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self.denied.add(number)
            return
        if was_revoked and self._is_revoked:
            raise Violation(f"write {number} was accepted after the permission had been revoked everywhere")
        self.acknowledged.add(number)

    async def _intrude(self, ports: Ports, is_active: Callable[[], bool]) -> None:
        async with asyncio.TaskGroup() as tasks:
            while is_active():
                await asyncio.sleep(self._rng.expovariate(1.0) * INTRUSION_PAUSE_S_MEAN)
                spec = self._rng.choice(self._topology.specs)
                ports_of_node = [SECURE_PORT] * spec.is_broker + [CONTROLLER_PORT] * spec.is_controller
                address = Address(spec.host, self._rng.choice(ports_of_node))
                tasks.create_task(self._send(ports, address, [*self._login(), *self._changes()]))

    async def _send(self, ports: Ports, address: Address, requests: list[tuple[int, Any]]) -> None:
        """Send requests without waiting for responses, as an intruder does."""
        peer = _Peer()
        try:
            connection = await ports.network.connect(address, peer, MiB)
            for number, (version, request) in enumerate(requests):
                connection.send(frame_request(RequestHeader(request.API_KEY, version, number, "mallory"), request))
        except OSError:
            return
        self._simulation.tally["intrusions"] += 1
        await asyncio.sleep(INTRUDER_S)
        connection.close()

    def _login(self) -> list[tuple[int, Any]]:
        """No authentication, half of one, a failed one, or that of a user without permissions."""
        handshake = (1, messages.SaslHandshakeRequest(mechanism="PLAIN"))
        wrong, right = (
            (2, messages.SaslAuthenticateRequest(auth_bytes=plain_message(name, password)))
            for name, password in (("node", "wrong"), ("mallory", _PASSWORDS["mallory"]))
        )
        return self._rng.choice(([], [handshake], [handshake, wrong], [handshake, right], [handshake, right]))

    def _changes(self) -> list[tuple[int, Any]]:
        changes = changes_of(self._rng.choice(sorted(self._ids)))
        return self._rng.sample(changes, self._rng.randint(1, 4))

    # -- checks

    def _applied_images(self) -> list[MetadataImage]:
        """The images by which the nodes that are up authorize requests."""
        nodes = self._observer.running_nodes()
        return [node.broker.image for node in nodes]

    def _check(self, host: str, node: Node) -> None:  # noqa: ARG002 - the common shape
        """Check the newest committed metadata."""
        image = self._observer.images.newest
        if image is self._checked:
            return
        self._checked = image
        if _allows_alice(image):
            self._is_revoked = False
        found = {
            "topics": set(image.topics) - self._known_topics,
            "principals of ACLs": {each.principal for each in image.acls.values()} - {ANONYMOUS, ALICE},
            "nodes": (set(image.brokers) | set(image.controllers)) - self._ids,
            "configs": {name for configs in image.configs.values() for name in configs} & HOSTILE_CONFIGS,
            "quotas": set(image.client_quotas),
            "SCRAM users": set(image.scram_credentials),
            "delegation tokens": set(image.delegation_tokens),
        }
        strange = {name: each for name, each in found.items() if each}
        if strange:
            raise Violation(f"An intruder changed the metadata: {strange}")

    async def audit(self) -> None:
        """After healing: compare the guarded topic with the responses to alice."""

        async def program(ports: Ports) -> None:
            async with self._client(ports, "admin") as admin:
                self._compare(await self._values(admin))

        await self._simulation.host("security-auditor").start(program)

    def _compare(self, values: list[bytes]) -> None:
        strange = [value for value in values if not value.startswith(b"alice ")]
        written = {int(value.removeprefix(b"alice ")) for value in values if value not in strange}
        denied, lost = written & self.denied, self.acknowledged - written
        if strange or denied or lost:
            raise Violation(f"{GUARDED}: of intruders {strange}, denied but written {denied}, lost {lost}")

    async def _values(self, admin: AsyncClient) -> list[bytes]:
        values: list[bytes] = []
        offset = 0
        while True:
            try:
                fetched = await admin.fetch(GUARDED, 0, offset, max_wait_ms=AUDIT_WAIT_MS)
            except (OSError, KafkaError) as error:
                await self._ledger.back_off(error)
                continue
            for _, batch in iterate_batches(fetched.records):
                for record in iterate_records(batch):
                    values.append(record.value or b"")
                    offset = record.offset + 1
            if offset >= fetched.high_watermark:
                return values

    def _client(self, ports: Ports, user: str) -> AsyncClient:
        settings = ClientSettings(
            client_id=user,
            connect_timeout_ms=2000,
            request_timeout_ms=3000,
            total_timeout_ms=10_000,
            security=ClientSecurity(protocol=SecurityProtocol.SASL_PLAINTEXT, sasl=PlainLogin(user, _PASSWORDS[user])),
        )
        bootstrap = self._topology.secure_bootstrap
        return AsyncClient(ports.network, ports.clock, ports.random, bootstrap, settings=settings)


class _Peer:
    """An endpoint that ignores all responses."""

    def connected(self, connection: Connection) -> None: ...

    def frame_received(self, frame: memoryview) -> None: ...

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


def _acl(kind: ResourceKind, name: str, principal: str, operation: Operation) -> AclBinding:
    return AclBinding(kind, name, PatternType.LITERAL, principal, "*", operation, Permission.ALLOW)


def _allows_alice(image: MetadataImage) -> bool:
    return any(acl.principal == ALICE and acl.operation is Operation.WRITE for acl in image.acls.values())
