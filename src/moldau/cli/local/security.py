"""A secured local cluster: TLS, users with passwords, ACLs, and ready settings for its clients.

<directory>/security.json             the passwords; marks a secured cluster
<directory>/certificates/             an authority, and the certificate of the nodes, renewed at every start
<directory>/clients/USER.properties   for moldau, Java and Spark
<directory>/clients/USER.json         for confluent-kafka, kafka-python and Spark
<directory>/clients/USER.kcat         for kcat -F

Only the owner may read these files. Clients and brokers authenticate by SCRAM, nodes to controllers by certificate.
`node` and `admin` are super users; ACLs allow `app` to produce and consume, and to create topics.
"""

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.broker.drivers.bootstrap_file import Credentials
from moldau.cli.certificates import CertificateError
from moldau.cli.certs import DAYS_MAX, load_or_create_authority
from moldau.cli.client_options import ADDRESS
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import write_private
from moldau.cli.local import credentials
from moldau.cli.local.layout import INTER_BROKER_PROTOCOL, STATE_FILE
from moldau.machines.access.acls import AclBinding, Operation, PatternType, Permission, ResourceKind
from moldau.node.ports.randomness import system_random
from moldau.node.properties import format_properties

SECURITY_FILE: Final = "security.json"
CERTIFICATES: Final = "certificates"
CLIENTS: Final = "clients"
LISTENER: Final = "SASL_SSL"
ADMIN: Final = "admin"
APP: Final = "app"
USERS: Final = (ADMIN, APP)
SECRET_BYTES: Final = 24
_PERMISSIONS: Final = {
    ResourceKind.TOPIC: (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE),
    ResourceKind.GROUP: (Operation.READ, Operation.DESCRIBE),
    ResourceKind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}


@dataclass(frozen=True, slots=True)
class ClusterSecurity:
    """The secrets of a cluster, and the settings that follow from them. Created by `ClusterSecurity.open`."""

    folder: Path
    passwords: dict[str, str] = field(repr=False)  # by user
    token_key: str = field(repr=False)

    @classmethod
    def open(cls, folder: Path, *, is_wanted: bool) -> Self | None:
        """Return the security of the cluster in this directory, or of a new one if it is wanted; nothing is written."""
        path = folder / SECURITY_FILE
        if path.exists():
            return cls._read(folder, path)
        if not is_wanted:
            return None
        if (folder / STATE_FILE).exists():
            raise usage_error(
                f"the cluster in {folder} was created without --secure: choose another --data directory, or see "
                "docs/guides/open-to-locked.md"
            )
        users = (credentials.NODE_USER, *USERS)
        return cls(folder, {name: _new_secret() for name in users}, _new_secret())

    @classmethod
    def _read(cls, folder: Path, path: Path) -> Self:
        try:
            saved = json.loads(path.read_text())
            passwords = {name: str(saved["passwords"][name]) for name in (credentials.NODE_USER, *USERS)}
            return cls(folder, passwords, str(saved["token_key"]))
        except (ValueError, KeyError, TypeError):  # the text of the error may have secrets
            raise CommandError(f"{path} is not valid: restore it, it has the passwords of the cluster") from None

    @property
    def certificates(self) -> Path:
        return self.folder.absolute() / CERTIFICATES

    @property
    def node_settings(self) -> dict[str, str]:
        return {
            INTER_BROKER_PROTOCOL: LISTENER,
            **credentials.tls_of_nodes(self.certificates),
            **credentials.sasl_of_nodes(LISTENER, credentials.SCRAM.sasl_name, self.passwords),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{credentials.NODE_USER};User:{ADMIN}",
            "delegation.token.secret.key": self.token_key,
        }

    @property
    def scram_users(self) -> Credentials:
        return credentials.scram_credentials(self.passwords, system_random().randbytes)

    @property
    def acls(self) -> list[AclBinding]:
        """The permissions of the user `app`."""
        return [
            AclBinding(kind, "*", PatternType.LITERAL, f"User:{APP}", "*", operation, Permission.ALLOW)
            for kind, operations in _PERMISSIONS.items()
            for operation in operations
        ]

    def client_file(self, user: str, ending: str = "properties") -> Path:
        return self.folder / CLIENTS / f"{user}.{ending}"

    def write(self, bootstrap_servers: str) -> None:
        """Write secrets, certificates and the settings of clients."""
        try:
            authority = load_or_create_authority(self.certificates, DAYS_MAX)
            credentials.write_node_certificate(authority, self.certificates)
        except CertificateError as error:
            raise CommandError(str(error)) from error
        (self.folder / CLIENTS).mkdir(exist_ok=True, mode=0o700)
        for user in USERS:
            self._write_clients(user, bootstrap_servers)
        secrets = {"passwords": self.passwords, "token_key": self.token_key}
        write_private(self.folder / SECURITY_FILE, json.dumps(secrets, indent=2) + "\n")

    def _write_clients(self, user: str, servers: str) -> None:
        mechanism, password = credentials.SCRAM.sasl_name, self.passwords[user]
        java = {
            ADDRESS: servers,
            **credentials.tls_of_clients(self.certificates, LISTENER),
            **credentials.sasl_of_clients(mechanism, user, password),
        }
        security = credentials.librdkafka_of_clients(self.certificates, LISTENER)
        security |= credentials.librdkafka_sasl(mechanism, user, password)
        librdkafka = {ADDRESS: servers, **security}
        of_libraries = {
            "confluent_kafka": librdkafka,
            "kafka_python": {"bootstrap_servers": servers, **credentials.kafka_python_settings(security)},
            "spark": {f"kafka.{name}": text for name, text in java.items()},
        }
        self._write_client(user, "properties", servers, format_properties(java))
        self._write_client(user, "json", servers, json.dumps(of_libraries, indent=2) + "\n")
        self._write_client(user, "kcat", servers, "".join(f"{name}={text}\n" for name, text in librdkafka.items()))

    def _write_client(self, user: str, ending: str, servers: str, text: str) -> None:
        """Keep a file of the same cluster address: its password may have been changed, there and in the cluster."""
        path = self.client_file(user, ending)
        if not path.exists() or servers not in path.read_text():
            write_private(path, text)


def _new_secret() -> str:
    return urlsafe_b64encode(system_random().randbytes(SECRET_BYTES)).decode()
