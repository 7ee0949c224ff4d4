"""Security of a test broker: certificates in its temporary directory, settings of the broker and of its clients."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau.broker.drivers.bootstrap_file import Credentials
from moldau.cli.certificates import Authority
from moldau.cli.files import write_private
from moldau.cli.local import credentials
from moldau.node.ports.randomness import system_random

MECHANISMS: Final = {"scram": credentials.SCRAM.sasl_name, "plain": credentials.PLAIN}
KINDS: Final = ("ssl", "mtls", *MECHANISMS)
USER: Final = "tester"
PASSWORD: Final = "password of tester"
PASSWORDS: Final = {credentials.NODE_USER: "password of node", USER: PASSWORD}
SUPER_USERS: Final = f"User:{credentials.NODE_USER};User:{USER}"


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """The settings of a secured broker, and of clients that connect to it."""

    listener: str
    broker_settings: dict[str, str] = field(repr=False)
    client_settings: dict[str, str] = field(repr=False)  # under the names of Kafka's Java clients
    librdkafka_settings: dict[str, str] = field(repr=False)
    scram_users: Credentials = field(default_factory=dict, repr=False)  # with which a new cluster is formatted

    @classmethod
    def create(cls, kind: str, directory: Path) -> "BrokerSecurity":
        """Make certificates and users. The user of clients is `User:tester`, except with `ssl`.

        `ssl` is TLS, `mtls` TLS with certificates of clients; `scram` and `plain` are TLS with SASL by SCRAM-SHA-512
        and PLAIN. The user is a super user, for tests that set `authorizer.class.name`.
        """
        if kind not in KINDS:
            raise ValueError(f"security is {kind!r}; it must be one of {', '.join(KINDS)}")
        directory.mkdir(parents=True, exist_ok=True)
        authority = Authority.create()
        authority.save(directory)
        credentials.write_node_certificate(authority, directory)
        listener = "SASL_SSL" if kind in MECHANISMS else "SSL"
        broker = credentials.tls_of_nodes(directory) | {"super.users": SUPER_USERS}
        client = credentials.tls_of_clients(directory, listener)
        librdkafka = credentials.librdkafka_of_clients(directory, listener)
        if kind == "mtls":
            user = directory / f"{USER}.pem"
            write_private(user, authority.issue(USER))
            broker |= {"ssl.client.auth": "required"}
            client |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(user)}
            librdkafka |= {"ssl.certificate.location": str(user), "ssl.key.location": str(user)}
        elif kind in MECHANISMS:
            mechanism = MECHANISMS[kind]
            broker |= credentials.sasl_of_nodes(listener, mechanism, PASSWORDS)
            client |= credentials.sasl_of_clients(mechanism, USER, PASSWORD)
            librdkafka |= credentials.librdkafka_sasl(mechanism, USER, PASSWORD)
        users = credentials.scram_credentials(PASSWORDS, system_random().randbytes) if kind == "scram" else {}
        return cls(listener, broker, client, librdkafka, users)

    @property
    def kafka_python_settings(self) -> dict[str, str]:
        return credentials.kafka_python_settings(self.librdkafka_settings)
