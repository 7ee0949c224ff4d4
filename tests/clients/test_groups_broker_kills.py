"""Groups of real clients while the broker is killed and restarted: no record lost, no group stuck."""

import gc
import threading
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import admin
from group_consumers import FLAVOURS, GroupConsumer, until

from moldau.testing import Broker

# A Python client drops sockets of a killed broker without closing them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

PARTITIONS = 4
KILLS = 3
DOWN_S = 0.5
FLAVOURS_TRIED = [each for each in FLAVOURS if each[1] in ("range", "cooperative-sticky", "consumer")]


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": "100", "group.consumer.min.session.timeout.ms": "1000"}
    with Broker(settings={**settings, "group.consumer.session.timeout.ms": "6000"}) as broker:
        yield broker


class Writer(threading.Thread):
    """Produces numbers continuously and records the acknowledged ones."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._topic = topic
        self.should_stop = threading.Event()
        self.acknowledged: set[int] = set()

    def run(self) -> None:
        number = 0
        while not self.should_stop.is_set():
            number += 1
            self._producer.produce(
                self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._on_delivery
            )
            self._producer.poll(0.002)
        self._producer.flush(60)

    def _on_delivery(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.add(int(message.value() or b"0"))


@pytest.mark.proves("C6")
@pytest.mark.parametrize(
    ("kind", "flavour"), FLAVOURS_TRIED, ids=[f"{kind.__name__}-{flavour}" for kind, flavour in FLAVOURS_TRIED]
)
def test_acknowledged_records_are_read_when_the_broker_is_killed(
    own_broker: Broker, kind: type[GroupConsumer], flavour: str
) -> None:
    servers = own_broker.bootstrap_servers
    client = admin.AdminClient({"bootstrap.servers": servers, "log_level": 0})
    client.create_topics([admin.NewTopic("t", PARTITIONS, 1)])["t"].result()
    writer = Writer(servers, "t")
    with kind(servers, "g", "t", flavour) as first, kind(servers, "g", "t", flavour) as second:
        until(lambda: len(first.owned) == len(second.owned) == PARTITIONS // 2, "both have their half")
        writer.start()
        for _ in range(KILLS):
            before = len(first.seen) + len(second.seen)
            until(lambda before=before: len(first.seen) + len(second.seen) > before + 50, "both members read on")  # type: ignore[misc]
            own_broker.kill()
            time.sleep(DOWN_S)  # the outage itself
            own_broker.start()
        second.stop()
        writer.should_stop.set()
        writer.join(90)
        until(lambda: writer.acknowledged <= _read(first, second), "everything that was acknowledged is read", 60)
    assert len(writer.acknowledged) > 200
    gc.collect()  # collects dropped sockets here, where the warning is ignored


def _read(*members: GroupConsumer) -> set[int]:
    return {int(seen.value) for member in members for seen in list(member.seen)}
