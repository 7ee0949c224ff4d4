"""Security of a test broker: certificates in its temporary directory, settings of the broker and of its clients."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau.cli.certificates import AUTHORITY_FILE, LOCAL_HOSTS, Authority
from moldau.cli.files import write_private

KINDS: Final = ("ssl", "mtls")
USER: Final = "tester"


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """What a broker needs to be secured, and what a client needs to connect to it."""

    listener: str
    broker_settings: dict[str, str] = field(repr=False)
    client_settings: dict[str, str] = field(repr=False)  # under the names of Kafka's Java clients
    librdkafka_settings: dict[str, str] = field(repr=False)

    @classmethod
    def create(cls, kind: str, directory: Path) -> "BrokerSecurity":
        """Make certificates: `ssl` is TLS, `mtls` TLS with certificates of clients, whose user is `User:tester`."""
        if kind not in KINDS:
            raise ValueError(f"security is {kind!r}; it must be one of {', '.join(KINDS)}")
        directory.mkdir(parents=True, exist_ok=True)
        authority = Authority.create()
        authority.save(directory)
        node, user = directory / "node.pem", directory / f"{USER}.pem"
        write_private(node, authority.issue("node", LOCAL_HOSTS))
        write_private(user, authority.issue(USER))
        trust = str(directory / AUTHORITY_FILE)
        broker = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(node),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": trust,
        }
        client = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": trust}
        librdkafka = {"security.protocol": "SSL", "ssl.ca.location": trust}
        if kind == "mtls":
            broker |= {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT"}
            client |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(user)}
            librdkafka |= {"ssl.certificate.location": str(user), "ssl.key.location": str(user)}
        return cls("SSL", broker, client, librdkafka)
