"""Metrics that librdkafka pushes by itself appear on the metrics page, with client id and user as labels."""

import time
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer

from moldau.testing import Broker

WAIT_S = 30.0
WANTED = {
    'kafka_client_producer_request_latency_avg{user="ANONYMOUS",client_id="orders"}',
    'kafka_client_producer_record_queue_time_max{user="ANONYMOUS",client_id="orders"}',
    'kafka_client_consumer_poll_idle_ratio_avg{user="ANONYMOUS",client_id="billing"}',
    'kafka_client_consumer_coordinator_assigned_partitions{user="ANONYMOUS",client_id="billing"}',
}


@pytest.mark.proves("O1", part="metrics that clients push")
def test_producer_and_consumer_push_metrics_without_any_set_up() -> None:
    with Broker(settings={"moldau.telemetry.default.interval.ms": "200"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "orders"})
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "client.id": "billing",
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["t"])
        deadline = time.monotonic() + WAIT_S
        missing = WANTED
        while missing and time.monotonic() < deadline:
            producer.produce("t", b"x")
            producer.poll(0.05)
            consumer.poll(0.05)
            with urllib.request.urlopen(str(broker.metrics)) as page:
                names = {line.rpartition(" ")[0] for line in page.read().decode().splitlines()}
            missing = WANTED - names
        consumer.close()
        producer.flush(WAIT_S)
    assert not missing
