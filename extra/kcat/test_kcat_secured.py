"""kcat over SASL_SSL and over TLS with a client certificate, by a file of settings.

Not by SCRAM: kcat of Debian and Ubuntu has librdkafka 2.0, which fails there as with Kafka 4 (fixed in 2.6.1).
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.testing import Broker

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")


@pytest.fixture(scope="module", params=["plain", "mtls"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(security=request.param, authorizer_class_name=STANDARD_AUTHORIZER) as broker:
        yield broker


def kcat(
    broker: Broker, directory: Path, *arguments: str, said: str = "", **others: str
) -> "subprocess.CompletedProcess[str]":
    """Run kcat with the broker's settings; `others` override them, with `_` for `.`."""
    settings = broker.librdkafka_settings | {name.replace("_", "."): text for name, text in others.items()}
    file = directory / "kcat.conf"
    file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    command = ["kcat", "-F", str(file), "-b", broker.bootstrap_servers, *arguments]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=30, check=False)


def test_lines_round_trip(broker: Broker, tmp_path: Path) -> None:
    topic = broker.create_topic("lines")
    lines = [f"line {number}" for number in range(100)]
    produced = kcat(broker, tmp_path, "-P", "-t", topic, "-z", "zstd", said="\n".join(lines))
    assert produced.returncode == 0, produced.stderr
    consumed = kcat(broker, tmp_path, "-C", "-e", "-q", "-t", topic)
    assert consumed.stdout.splitlines() == lines
    grouped = kcat(broker, tmp_path, "-e", "-q", "-c", "100", "-G", "readers", topic, auto_offset_reset="earliest")
    assert grouped.stdout.splitlines() == lines, grouped.stderr


def test_other_credentials_are_rejected(broker: Broker, tmp_path: Path) -> None:
    if "sasl.password" in broker.librdkafka_settings:
        listed = kcat(broker, tmp_path, "-L", "-m", "3", sasl_password="a guess")
        assert "Invalid username or password" in listed.stderr
    else:
        listed = kcat(broker, tmp_path, "-L", "-m", "3", ssl_certificate_location="", ssl_key_location="")
    assert listed.returncode != 0
