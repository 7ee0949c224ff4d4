"""A cluster whose listeners, those of controllers included, are SASL_SSL, and whose authorizer has ACLs."""

import os
import subprocess
import sys
from pathlib import Path

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.broker.drivers.bootstrap_file import write_bootstrap
from moldau.cli.certificates import AUTHORITY_FILE, LOCAL_HOSTS, Authority
from moldau.cli.files import write_private
from moldau.machines.access.scram import ScramMechanism, ScramUser, derive_credential
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.files import SystemDisk
from moldau.testing.cluster import Cluster
from moldau.testing.security import BrokerSecurity

PASSWORDS = {"node": "pw of node", "admin": "pw of admin", "alice": "pw of alice", "eve": "pw of eve"}
SCRAM = "SCRAM-SHA-512"
LISTENERS = ("sasl_ssl", "controller")
COMMAND_S_MAX = 60


class SecuredCluster:
    """Three nodes; `mechanism` is that of nodes among themselves. Users: node, admin; others are created by tests."""

    def __init__(self, directory: Path, mechanism: str) -> None:
        self.directory = directory
        authority = Authority.create()
        authority.save(directory)
        self.authority = str(directory / AUTHORITY_FILE)
        write_private(directory / "node.pem", authority.issue("node", LOCAL_HOSTS))
        self.cluster = Cluster(3, settings=self._settings(mechanism))
        self._format_with_users()
        self.cluster.security = BrokerSecurity("SASL_SSL", {}, self.java("admin"), self.librdkafka("admin"))

    def _settings(self, mechanism: str) -> dict[str, str]:
        users = " ".join(f'user_{name}="{PASSWORDS[name]}"' for name in ("node", "admin"))
        jaas = {
            "PLAIN": f'PlainLoginModule required username="node" password="{PASSWORDS["node"]}" {users};',
            SCRAM: f'ScramLoginModule required username="node" password="{PASSWORDS["node"]}";',
        }
        return {
            "security.inter.broker.protocol": "SASL_SSL",
            "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": SCRAM if mechanism == SCRAM else f"{SCRAM},{mechanism}",
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.mechanism.controller.protocol": mechanism,
            **{f"listener.name.{each}.{mechanism.lower()}.sasl.jaas.config": jaas[mechanism] for each in LISTENERS},
            "ssl.keystore.location": str(self.directory / "node.pem"),
            "ssl.truststore.location": self.authority,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:node;User:admin",
            "auto.create.topics.enable": "false",
        }

    def _format_with_users(self) -> None:
        """Write what `moldau storage format --add-scram` writes."""
        disk, kind = SystemDisk(Capabilities.detect()), ScramMechanism.SCRAM_SHA_512
        users = {
            ScramUser(name, kind): derive_credential(kind, PASSWORDS[name], name.encode() * 4, 4096)
            for name in ("node", "admin")
        }
        for node in self.cluster.layout.nodes:
            write_bootstrap(disk, str(node.folder), users, 0)

    # Settings of clients

    def java(self, user: str, password: str | None = None, authority: str | None = None) -> dict[str, str]:
        jaas = f'ScramLoginModule required username="{user}" password="{password or PASSWORDS[user]}";'
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": authority or self.authority,
            "sasl.mechanism": SCRAM,
            "sasl.jaas.config": jaas,
        }

    def librdkafka(self, user: str, password: str | None = None, authority: str | None = None) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority or self.authority,
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": password or PASSWORDS[user],
        }

    def python(self, user: str, password: str | None = None) -> dict[str, str]:
        """The settings of kafka-python and aiokafka, but for the authority."""
        return {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": SCRAM,
            "sasl_plain_username": user,
            "sasl_plain_password": password or PASSWORDS[user],
        }

    # Commands

    def command_config(self, name: str, settings: dict[str, str]) -> Path:
        file = self.directory / f"{name}.properties"
        lines = {"bootstrap.servers": self.cluster.bootstrap_servers, **settings}
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return file

    def run(self, config: Path, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a command in a process of its own."""
        command = [sys.executable, "-P", "-m", "moldau.cli.main", *arguments, "--command-config", str(config)]
        environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False, env=environment
        )

    def moldau(self, user: str, *arguments: str, stdin: str = "") -> str:
        """Run a command as `user`; return what it prints."""
        result = self.run(self.command_config(user, self.java(user)), *arguments, stdin=stdin)
        assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
        return result.stdout
