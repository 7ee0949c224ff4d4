"""A listener with a JKS keystore: the broker does not start, and says how to convert it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app

pytestmark = pytest.mark.proves("O4", part="TLS")

JKS = b"\xfe\xed\xfe\xed" + bytes(20)


@pytest.mark.parametrize("kind", ["", "-c ssl.keystore.type=JKS", "-c ssl.keystore.type=PKCS12"])
def test_broker_with_a_jks_keystore_says_how_to_convert_it(kind: str, tmp_path: Path) -> None:
    store = tmp_path / "node.jks"
    store.write_bytes(JKS)
    settings = f"-c listeners=SSL://127.0.0.1:0 -c ssl.keystore.location={store} {kind}"
    result = CliRunner().invoke(app, ["start", "-d", str(tmp_path / "data"), *settings.split()])
    assert result.exit_code == 2, f"{result.output}{result.exception!r}"
    (line,) = result.stderr.splitlines()
    assert f"ssl.keystore.location={store} is a JKS store, which only Java reads" in line
    assert f"keytool -importkeystore -srckeystore {store} -destkeystore keystore.p12 -deststoretype PKCS12" in line
    assert "set ssl.keystore.location=keystore.p12 and ssl.keystore.type=PKCS12" in line
