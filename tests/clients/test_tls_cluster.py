"""Three nodes that use TLS with certificates for everything: clients, replication, the metadata quorum."""

import socket
import ssl
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from moldau.testing.cluster import Cluster

VALUES = [b"%06d" % number + bytes(500) for number in range(400)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, security="mtls") as cluster:
        yield cluster


def test_acknowledged_records_survive_the_leader_over_mutual_tls(cluster: Cluster) -> None:
    topic = cluster.create_topic("orders")
    config = {"bootstrap.servers": cluster.bootstrap_servers, **cluster.librdkafka_settings}
    producer = Producer({**config, "enable.idempotence": True})
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    for number, value in enumerate(VALUES):
        producer.produce(topic, value, on_delivery=delivered)
        if number == len(VALUES) // 2:
            assert producer.flush(30) == 0
            cluster.kill(cluster.leader_of(topic))
    assert producer.flush(60) == 0
    assert not failures
    consumer = Consumer({**config, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < len(VALUES):
        found = [message.value() or b"" for message in consumer.consume(len(VALUES) - len(values), timeout=30)]
        assert found
        values += found
    consumer.close()
    assert values == VALUES
    for controller in cluster.layout.state.controllers:
        if controller.node_id in cluster.running:
            _check_controller_port(controller.port, cluster)


def _check_controller_port(port: int, cluster: Cluster) -> None:
    """Controllers serve no one without a certificate of their authority."""
    assert cluster.security is not None
    context = ssl.create_default_context(cafile=cluster.security.librdkafka_settings["ssl.ca.location"])
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        secured.recv(1)
