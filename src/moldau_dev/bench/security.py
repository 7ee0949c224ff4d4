"""The cost of security: the CPU time of a broker per request and per MiB, open and with TLS, SASL, ACLs and quotas.

Every broker gets the same load from librdkafka, round by round: single records, each acknowledged before the next, and
batches of 64 KiB. The brokers with ACLs and quotas serve the client on a SASL listener without TLS, like the one they
are compared with, so that each row differs from its reference in one thing.
"""

import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.bench import processes
from moldau.cli.bench.rounds import Tell
from moldau.cli.bench.statistics import Spread, ratios, spread
from moldau.cli.errors import CommandError
from moldau.client.acls import Acls
from moldau.client.blocking_client import BlockingClient
from moldau.client.client_quotas import ClientQuotas
from moldau.machines.access.acls import AclBinding, Operation, PatternType, Permission, ResourceKind
from moldau.model.units import KiB, MiB
from moldau.testing import Broker
from moldau.testing.client import SocketClient

TOPIC: Final = "load"
USER: Final = "alice"
PASSWORD: Final = "password of alice"
ACLS: Final = 1_000
SINGLE_RECORDS: Final = 1_000
RECORD_BYTES: Final = 1_000
LOAD_BYTES: Final = 32 * MiB
BATCH_BYTES: Final = 64 * KiB
FLUSH_S: Final = 60.0
ERRORS_ONLY: Final = 3  # log level
UNLIMITED_RATE: Final = 1e12  # a quota that never throttles

OPEN: Final = "open"
SASL: Final = "SASL"
WITH_ACLS: Final = f"SASL, {ACLS:,} ACLs"
WITH_QUOTAS: Final = "SASL, quotas"
WITH_TLS: Final = "TLS 1.3"
WITH_SCRAM: Final = "TLS 1.3, SCRAM"
REFERENCES: Final = {SASL: OPEN, WITH_ACLS: SASL, WITH_QUOTAS: SASL, WITH_TLS: OPEN, WITH_SCRAM: WITH_TLS}

_PRODUCED: Final = re.compile(r'^kafka_network_requestmetrics_requests_total\{request="Produce"\} (\d+)$', re.MULTILINE)
_LOGIN: Final = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
_TWO_LISTENERS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": _LOGIN,
}
_CLIENT: Final = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}


@dataclass(slots=True)
class Cost:
    """CPU time of one broker, round by round."""

    us_per_request: list[float] = field(default_factory=list)
    ms_per_mib: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """The cost of one kind of security, and its ratio to the reference, which differs in one thing."""

    name: str
    us_per_request: Spread
    ms_per_mib: Spread
    reference: str = ""
    request_ratio: Spread | None = None
    mib_ratio: Spread | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A broker and the settings of its clients."""

    broker: Broker
    client: dict[str, Any]

    def produced(self) -> int:
        """Produce requests since the start."""
        with urllib.request.urlopen(str(self.broker.metrics)) as page:
            found = _PRODUCED.search(page.read().decode())
        if found is None:
            raise CommandError("the metrics page has no count of Produce requests")
        return int(found[1])


def measure_security(rounds: int, tell: Tell) -> list[Row]:
    with ExitStack() as stack:
        tell("starting brokers")
        subjects = {name: stack.enter_context(start()) for name, start in _SUBJECTS.items()}
        costs = {name: Cost() for name in subjects}
        for number in range(rounds + 1):  # the first round warms up
            for name, subject in subjects.items():
                tell(f"{name}: round {number} of {rounds}" if number else f"{name}: warming up")
                us, ms = _single_records(subject), _batches(subject)
                if number:
                    costs[name].us_per_request.append(us)
                    costs[name].ms_per_mib.append(ms)
    return [_row(name, costs) for name in costs]


def _row(name: str, costs: dict[str, Cost]) -> Row:
    cost = costs[name]
    row = Row(name, spread(cost.us_per_request), spread(cost.ms_per_mib))
    if name not in REFERENCES:
        return row
    reference = costs[REFERENCES[name]]
    return Row(
        name,
        row.us_per_request,
        row.ms_per_mib,
        REFERENCES[name],
        ratios(cost.us_per_request, reference.us_per_request),
        ratios(cost.ms_per_mib, reference.ms_per_mib),
    )


# Loads ----------------------------------------------------------------------------------------------------------------


def _single_records(subject: Subject) -> float:
    """CPU microseconds per request of one record."""
    producer = Producer({**subject.client, "linger.ms": 0, "log_level": ERRORS_ONLY})
    _produce(producer, 1)  # connects, and looks up the topic
    produced, cpu_s = subject.produced(), processes.cpu_s(subject.broker.pid)
    for _ in range(SINGLE_RECORDS):
        _produce(producer, 1)
    cpu_s = processes.cpu_s(subject.broker.pid) - cpu_s
    return cpu_s / (subject.produced() - produced) * 1e6


def _batches(subject: Subject) -> float:
    """CPU milliseconds per MiB of batches of 64 KiB."""
    producer = Producer({**subject.client, "linger.ms": 50, "batch.size": BATCH_BYTES, "log_level": ERRORS_ONLY})
    _produce(producer, 1)
    cpu_s = processes.cpu_s(subject.broker.pid)
    _produce(producer, LOAD_BYTES // RECORD_BYTES)
    return (processes.cpu_s(subject.broker.pid) - cpu_s) * 1000 / (LOAD_BYTES / MiB)


def _produce(producer: Producer, records: int) -> None:
    failures: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:  # noqa: ARG001 - the library's signature
        if error is not None:
            failures.append(error)

    for _ in range(records):
        producer.produce(TOPIC, bytes(RECORD_BYTES), on_delivery=on_delivery)
    if producer.flush(FLUSH_S) or failures:
        raise CommandError(f"records were not acknowledged: {failures[:1]}")


# Brokers --------------------------------------------------------------------------------------------------------------


@contextmanager
def _open() -> Iterator[Subject]:
    with Broker() as broker:
        broker.create_topic(TOPIC)
        yield Subject(broker, {"bootstrap.servers": broker.bootstrap_servers})


def _with_sasl(settings: dict[str, str], prepare: Callable[[BlockingClient], object]) -> Callable[[], Any]:
    """A broker whose plain listener is for its administrator, and whose SASL listener is for the load."""

    @contextmanager
    def start() -> Iterator[Subject]:
        with Broker(listen=None, settings={**_TWO_LISTENERS, **settings}) as broker:
            admin, client = broker.bootstrap_servers.split(",")
            with SocketClient(admin) as connected:
                connected.create_topic(TOPIC, partitions=1, replication_factor=1)
                prepare(connected)
            yield Subject(broker, {"bootstrap.servers": client, **_CLIENT})

    return start


def _acls(user: str) -> list[AclBinding]:
    """ACLs of other users and topics, and the one that the load needs."""
    others = [
        AclBinding(
            ResourceKind.TOPIC,
            f"topic-{number % 100}",
            PatternType.LITERAL if number % 2 else PatternType.PREFIXED,
            f"User:user-{number}",
            "*",
            Operation.WRITE,
            Permission.ALLOW,
        )
        for number in range(ACLS - 1)
    ]
    literal, allow = PatternType.LITERAL, Permission.ALLOW
    return [*others, AclBinding(ResourceKind.TOPIC, TOPIC, literal, f"User:{user}", "*", Operation.WRITE, allow)]


def _create_acls(admin: BlockingClient) -> None:
    failed = [error for error in admin.run(Acls(admin.asynchronous).create(_acls(USER))) if error is not None]
    if failed:
        raise failed[0]


def _create_quotas(admin: BlockingClient) -> None:
    limits = {"producer_byte_rate": UNLIMITED_RATE, "request_percentage": UNLIMITED_RATE}
    admin.run(ClientQuotas(admin.asynchronous).alter({"user": USER}, set_to=limits))


def _with_tls(kind: str) -> Callable[[], Any]:
    @contextmanager
    def start() -> Iterator[Subject]:
        with Broker(security=kind) as broker:
            broker.create_topic(TOPIC)
            yield Subject(broker, {"bootstrap.servers": broker.bootstrap_servers, **broker.librdkafka_settings})

    return start


_AUTHORIZER: Final = {"authorizer.class.name": STANDARD_AUTHORIZER}
_SUBJECTS: Final[dict[str, Callable[[], Any]]] = {
    OPEN: _open,
    SASL: _with_sasl({}, lambda admin: None),  # noqa: ARG005 - the common shape
    WITH_ACLS: _with_sasl({**_AUTHORIZER, "super.users": "User:ANONYMOUS"}, _create_acls),
    WITH_QUOTAS: _with_sasl({}, _create_quotas),
    WITH_TLS: _with_tls("ssl"),
    WITH_SCRAM: _with_tls("scram"),
}
