"""Apache Kafka's own Java client, several versions of it: produce, consume, administer."""

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest
from apache_kafka import HERE, has_java, java

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.files import write_private
from moldau.node.properties import format_properties
from moldau.testing import Broker

pytestmark = pytest.mark.skipif(not has_java, reason="needs java and `mvn package`")

VERSIONS: Final = ("3.9.1", "4.0.0", "4.3.1", "4.4.0")
OLDEST_AND_NEWEST: Final = (VERSIONS[0], VERSIONS[-1])

SHARE_SETTINGS: Final = {
    "moldau.metrics.listener": "",
    "auto.create.topics.enable": "false",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "2000",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


@pytest.mark.proves("A1", "P1", "P2", "C1", "S9", "T1")
@pytest.mark.parametrize("version", VERSIONS)
def test_java_client_is_served(version: str) -> None:
    """The steps are in src/main/java; the output lists each as passed or failed."""
    with Broker(settings={"moldau.metrics.listener": "", "auto.create.topics.enable": "false"}) as broker:
        take_tour(broker, version, "moldau.ClientTour", steps_min=26)


@pytest.mark.proves("A1", "C2", "C3", "C5")
@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
def test_java_client_works_in_groups(version: str) -> None:
    """All assignors of the client, and from 4.0 on the server's."""
    has_consumer_protocol = version >= "4"
    settings = {
        "moldau.metrics.listener": "",
        "group.initial.rebalance.delay.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    with Broker(settings=settings) as broker:
        steps_min = 25 if has_consumer_protocol else 19
        arguments = [str(has_consumer_protocol).lower()]
        take_tour(broker, version, "moldau.GroupTour", *arguments, steps_min=steps_min)


@pytest.mark.proves("A1", "P3", "C6", "C7")
@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
def test_java_client_works_with_transactions(version: str) -> None:
    """Clients from 4.0 on use transactions of version 2, with an epoch bump per transaction."""
    settings = {
        "moldau.metrics.listener": "",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    with Broker(settings=settings) as broker:
        take_tour(broker, version, "moldau.TransactionTour", str(version >= "4").lower(), steps_min=11)


@pytest.mark.proves("A1", "C8")
def test_java_client_works_in_share_groups() -> None:
    """`KafkaShareConsumer` acknowledges, renews and rejects records; `Admin` shows and changes the groups."""
    with Broker(settings=SHARE_SETTINGS) as broker:
        take_tour(broker, VERSIONS[-1], "moldau.ShareTour", steps_min=14)


@pytest.mark.parametrize("security", ["scram", "mtls"])
def test_java_client_is_served_over_tls_with_authentication(security: str, tmp_path: Path) -> None:
    """The everyday steps and transactions, by a user whose sessions are renewed every two seconds."""
    settings = {
        "moldau.metrics.listener": "",
        "auto.create.topics.enable": "false",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "connections.max.reauth.ms": "2000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    with Broker(security=security, settings=settings) as broker:
        config = tmp_path / "client.properties"
        write_private(config, format_properties(broker.client_settings))
        take_tour(broker, VERSIONS[-1], "moldau.ClientTour", steps_min=26, config=config)
        take_tour(broker, VERSIONS[-1], "moldau.TransactionTour", "true", steps_min=11, config=config)


def take_tour(
    broker: Broker, version: str, tour_class: str, *arguments: str, steps_min: int, config: Path | None = None
) -> None:
    jar = HERE / f"target/clients/kafka-clients-{version}.jar"
    command = java(tour_class, broker.bootstrap_servers, *arguments, first=[jar] if jar.exists() else [])
    environment = {**os.environ, **({"CLIENT_CONFIG": str(config)} if config else {})}
    tour = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, env=environment)
    failed = [line for line in tour.stdout.splitlines() if line.startswith("failed ")]
    assert not failed, "\n".join([*failed, tour.stderr[-4000:]])
    assert tour.stdout.count("passed ") >= steps_min, tour.stdout + tour.stderr[-4000:]
    assert tour.returncode == 0
    assert "bug" not in broker.log
