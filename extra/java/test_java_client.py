"""Apache Kafka's own Java client, several versions of it: produce, consume, administer."""

import subprocess
from typing import Final

import pytest
from apache_kafka import HERE, has_java, java

from moldau.testing import Broker

pytestmark = pytest.mark.skipif(not has_java, reason="needs java and `mvn package`")

VERSIONS: Final = ("3.9.1", "4.0.0", "4.3.1", "4.4.0")


@pytest.mark.proves("A1", "P1", "P2", "C1", "S9", "T1")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_java_client_is_served(version: str) -> None:
    """The steps are in src/main/java; the output tells each that passed or failed."""
    jar = HERE / f"target/clients/kafka-clients-{version}.jar"
    settings = {"moldau.metrics.listener": "", "auto.create.topics.enable": "false"}
    with Broker(settings=settings) as broker:
        command = java("moldau.ClientTour", broker.bootstrap_servers, first=[jar] if jar.exists() else [])
        tour = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
        failed = [line for line in tour.stdout.splitlines() if line.startswith("failed ")]
        assert not failed, "\n".join([*failed, tour.stderr[-4000:]])
        assert tour.stdout.count("passed ") > 25, tour.stdout + tour.stderr[-4000:]
        assert tour.returncode == 0
        assert "bug" not in broker.log
