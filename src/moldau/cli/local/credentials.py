"""Settings of a node and of its clients for TLS and SASL, and the SCRAM credentials of a new cluster's users."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from moldau.broker.drivers.bootstrap_file import Credentials
from moldau.cli.certificates import AUTHORITY_FILE, LOCAL_HOSTS, NODE_NAME, Authority
from moldau.cli.files import write_private
from moldau.machines.access.scram import SALT_BYTES, ScramMechanism, ScramUser, derive_credential

NODE_USER: Final = "node"
ITERATIONS: Final = 4096
PLAIN: Final = "PLAIN"
SCRAM: Final = ScramMechanism.SCRAM_SHA_512
_MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM.sasl_name: "org.apache.kafka.common.security.scram.ScramLoginModule",
}

# librdkafka's names, and kafka-python's for the same.
_PYTHON_NAMES: Final = {
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}


def write_node_certificate(authority: Authority, directory: Path) -> None:
    """Write the certificate of all nodes of this machine."""
    write_private(directory / f"{NODE_NAME}.pem", authority.issue(NODE_NAME, LOCAL_HOSTS))


def tls_of_nodes(directory: Path) -> dict[str, str]:
    """Return the TLS settings of nodes whose certificate is in `directory`."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / f"{NODE_NAME}.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / AUTHORITY_FILE),
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
    }


def tls_of_clients(directory: Path, protocol: str) -> dict[str, str]:
    return {
        "security.protocol": protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / AUTHORITY_FILE),
    }


def sasl_of_nodes(listener: str, mechanism: str, passwords: Mapping[str, str]) -> dict[str, str]:
    """Return the SASL settings of a listener for clients and brokers; `passwords` has those of all users by name."""
    users = "".join(f' user_{name}="{password}"' for name, password in passwords.items()) if mechanism == PLAIN else ""
    login = jaas(mechanism, NODE_USER, passwords[NODE_USER])
    return {
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config": f"{login[:-1]}{users};",
    }


def sasl_of_clients(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(mechanism, user, password)}


def jaas(mechanism: str, user: str, password: str) -> str:
    """Return the login of a user; the password must not contain quotation marks."""
    return f'{_MODULES[mechanism]} required username="{user}" password="{password}";'


def librdkafka_of_clients(directory: Path, protocol: str) -> dict[str, str]:
    return {"security.protocol": protocol, "ssl.ca.location": str(directory / AUTHORITY_FILE)}


def librdkafka_sasl(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def kafka_python_settings(librdkafka: Mapping[str, str]) -> dict[str, str]:
    return {_PYTHON_NAMES[name]: text for name, text in librdkafka.items()}


def scram_credentials(passwords: Mapping[str, str], randbytes: Callable[[int], bytes]) -> Credentials:
    """Return what `moldau storage format --add-scram` makes of these passwords."""
    return {
        ScramUser(name, SCRAM): derive_credential(SCRAM, password, randbytes(SALT_BYTES), ITERATIONS)
        for name, password in passwords.items()
    }
