"""franz-go's client over SASL_SSL with SCRAM and with a client certificate: transactions, and a consumer group."""

import subprocess
from pathlib import Path

import pytest

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.testing import Broker

PROGRAM = Path(__file__).parent / "bin/secured"
TOPIC = "from-go"

pytestmark = pytest.mark.proves("O4", part="SASL")


def run(broker: Broker, *login: str) -> "subprocess.CompletedProcess[str]":
    command = [str(PROGRAM), broker.bootstrap_servers, broker.librdkafka_settings["ssl.ca.location"], TOPIC, *login]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("kind", ["scram", "mtls"])
def test_transactions_and_groups_of_an_authenticated_client(kind: str) -> None:
    with Broker(security=kind, authorizer_class_name=STANDARD_AUTHORIZER) as broker:
        broker.create_topic(TOPIC, partitions=3)
        user = broker.librdkafka_settings
        login = (user["sasl.username"], user["sasl.password"]) if kind == "scram" else (user["ssl.key.location"],)
        done = run(broker, kind, *login)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == 100  # those of the aborted transaction are not among them


def test_wrong_password_is_an_error() -> None:
    with Broker(security="scram") as broker:
        done = run(broker, "scram", broker.librdkafka_settings["sasl.username"], "wrong")
    assert done.returncode == 1
    assert "SASL_AUTHENTICATION_FAILED" in done.stderr
