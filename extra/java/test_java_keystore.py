"""A keystore of Java's keytool in the format JKS: the broker says how to convert it, and starts with the result."""

import re
import ssl
import subprocess
from pathlib import Path

import pytest
from apache_kafka import has_java, run

from moldau.testing import Broker, BrokerFailed

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.timeout(120)]

PASSWORD = "of the store"


def test_jks_keystore_is_converted_by_the_command_in_the_error(tmp_path: Path) -> None:
    store = tmp_path / "node.jks"
    passwords = ["-storepass", PASSWORD, "-keypass", PASSWORD]
    where = ["-keystore", str(store), "-storetype", "JKS", "-alias", "node"]
    run(["keytool", "-genkeypair", "-keyalg", "RSA", "-dname", "CN=node", *where, *passwords])
    listener = {"listeners": "SSL://localhost:0", "inter.broker.listener.name": "SSL", "ssl.key.password": PASSWORD}
    settings = listener | {"ssl.keystore.location": store, "ssl.keystore.password": PASSWORD}
    with pytest.raises(BrokerFailed) as failed, Broker(listen=None, settings=settings):
        pass
    said = re.search(r"Convert it with: (keytool .* PKCS12), and set (\S+)=(\S+) and (\S+)=(\S+)\.", str(failed.value))
    assert said is not None, failed.value
    command, location, path, name, kind = said.groups()
    done = subprocess.run(  # keytool asks for the passwords of both stores
        command.split(),
        input=f"{PASSWORD}\n{PASSWORD}\n{PASSWORD}\n",
        text=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    settings |= {location: tmp_path / path, name: kind}
    with Broker(listen=None, settings=settings) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        assert "BEGIN CERTIFICATE" in ssl.get_server_certificate((host, int(port)))
