"""The same requests, byte for byte, to Moldau and to Apache Kafka: the responses must be equal.

Intended differences, not tested here: unknown codecs (Kafka has no error for them), trailing bytes after a batch
(Kafka accepts them), a produce request without records (Kafka never responds), isolation levels and operations that do
not exist (Kafka responds with UNKNOWN_SERVER_ERROR), a partition listed twice in ListOffsets, the source of a
retention from `log.retention.hours` (Kafka omits it), loggers in ListConfigResources,
which have no configs here.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
import record_requests
import topic_requests
from apache_kafka import ApacheKafka, has_java
from protocol_requests import CLOSED, OWN, BrokerConnection, Request, Scene, differences, plain

from moldau.testing import Broker
from moldau.wire.messages import CreateTopicsRequest, InitProducerIdRequest, ListOffsetsRequest

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.proves("A1")]

REQUESTS: Final[dict[str, Sequence[Request]]] = {
    "produce": record_requests.PRODUCE,
    "fetch": record_requests.FETCH,
    "list offsets": record_requests.LIST_OFFSETS,
    "epochs": record_requests.EPOCHS,
    "delete records": record_requests.DELETE_RECORDS,
    "producer ids": record_requests.PRODUCER_IDS,
    "metadata": topic_requests.METADATA,
    "create": topic_requests.CREATE,
    "grow": topic_requests.GROW,
    "delete": topic_requests.DELETE_TOPICS,
    "describe": topic_requests.DESCRIBE,
    "alter": topic_requests.ALTER,
    "change": topic_requests.CHANGE,
    "cluster": topic_requests.CLUSTER,
}
COORDINATOR_LOADS: Final = 14
PARTITIONS: Final = 2
WAIT_S: Final = 30.0
_numbers = itertools.count(1)


class BrokerUnderTest:
    """A broker with its own topic for the requests."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._servers = bootstrap_servers
        self._talker = BrokerConnection(bootstrap_servers)
        self._topic = topic
        self._topic_id = self._create()
        self.response(record_requests.SOME_RECORDS, 9, "")

    def _create(self) -> bytes:
        wanted = CreateTopicsRequest.CreatableTopic(name=self._topic, num_partitions=PARTITIONS, replication_factor=1)
        response = self._talker.ask(7, CreateTopicsRequest(timeout_ms=10_000, topics=[wanted]))
        assert response.topics[0].error_code == 0, response
        self._wait_until_it_is_there()
        topic_id: bytes = response.topics[0].topic_id
        return topic_id

    def _wait_until_it_is_there(self) -> None:
        """Wait for a leader and for producer ids, which Apache Kafka has only after its response."""
        deadline_s = time.monotonic() + WAIT_S
        while not (self._leads() and self._gives_producer_ids()):
            assert time.monotonic() < deadline_s, f"{self._topic} is not there"

    def _leads(self) -> bool:
        requested = [ListOffsetsRequest.ListOffsetsPartition(partition_index=index) for index in range(PARTITIONS)]
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=self._topic, partitions=requested)]
        response = self._talker.ask(7, ListOffsetsRequest(replica_id=-1, topics=topics))
        return all(each.error_code == 0 for each in response.topics[0].partitions)

    def _gives_producer_ids(self) -> bool:
        response = self._talker.ask(4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
        return bool(response.error_code != COORDINATOR_LOADS)

    def response(self, request_case: Request, version: int, unused: str) -> Any:
        request = request_case.request(Scene(version, self._topic, self._topic_id, unused))
        response = self._talker.ask(version, request)
        if response is CLOSED:
            self._talker.close()
            self._talker = BrokerConnection(self._servers)
        return plain(response, OWN | request_case.own)

    def close(self) -> None:
        self._talker.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of Moldau and Apache Kafka."""
    folder = tmp_path_factory.mktemp("kafka") / "data"
    with ApacheKafka(folder) as kafka, Broker(settings={"moldau.metrics.listener": ""}) as broker:
        yield broker.bootstrap_servers, kafka.bootstrap_servers
        assert "bug" not in broker.log


@pytest.mark.parametrize("about", REQUESTS)
def test_responses_equal_those_of_kafka(servers: tuple[str, str], about: str) -> None:
    topic = f"requests-{next(_numbers)}"
    ours, theirs = (BrokerUnderTest(each, topic) for each in servers)
    found = []
    for request_case in REQUESTS[about]:
        for version in request_case.versions:
            unused = f"unused-{next(_numbers)}"
            ask = request_case, version, unused
            found += [
                f"{request_case.name}, version {version}: {line}"
                for line in differences(ours.response(*ask), theirs.response(*ask))
            ]
    ours.close()
    theirs.close()
    assert not found, "\n".join(found)
