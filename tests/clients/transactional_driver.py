"""One interface for the transactional producers of every client library."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import aiokafka
import confluent_kafka
from aiokafka import errors as aiokafka_errors
from client_driver import WAIT_S
from client_driver_kafka_python import kafka, kafka_errors

TIMEOUT_MS: Final = 60_000


class Fenced(Exception):
    """Another producer has taken the transactional id over."""


class Transactor(Protocol):
    """A producer that has initialised its transactional id."""

    def begin(self) -> None: ...

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        """Send without waiting; `commit` waits."""

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


MakeTransactor = Callable[..., Transactor]


class ConfluentTransactor:
    """librdkafka."""

    def __init__(self, servers: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._servers = servers
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 1,
            }
        )
        self._call(self._producer.init_transactions, WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self._producer.produce(topic, value, partition=partition)
        self._producer.flush(WAIT_S)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "group.id": group})
        try:
            place = confluent_kafka.TopicPartition(topic, partition, offset)
            metadata = consumer.consumer_group_metadata()
            self._call(self._producer.send_offsets_to_transaction, [place], metadata, WAIT_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, WAIT_S)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, WAIT_S)

    def close(self) -> None:
        del self._producer

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() in (confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError.PRODUCER_FENCED):
                raise Fenced(str(error)) from error
            raise


class AioKafkaTransactor:
    """aiokafka, on a loop of its own."""

    def __init__(self, servers: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._runner = asyncio.Runner()
        self._producer: Any = self._runner.run(self._start(servers, transactional_id, timeout_ms))

    async def _start(self, servers: str, transactional_id: str, timeout_ms: int) -> Any:
        producer: Any = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        await producer.start()
        return producer

    def begin(self) -> None:
        self._run(lambda: self._producer.begin_transaction())

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self._run(lambda: self._producer.send_and_wait(topic, value.encode(), partition=partition))

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {aiokafka.TopicPartition(topic, partition): offset}
        self._run(lambda: self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._run(lambda: self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(lambda: self._producer.abort_transaction())

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()

    def _run(self, call: Callable[[], Any]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(call(), WAIT_S)

        try:
            self._runner.run(bounded())
        except aiokafka_errors.ProducerFenced as error:
            raise Fenced(str(error)) from error


class KafkaPythonTransactor:
    """kafka-python."""

    def __init__(self, servers: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer: Any = kafka.KafkaProducer(
            bootstrap_servers=servers, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self._call(lambda: self._producer.send(topic, value.encode(), partition=partition).get(WAIT_S))

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(offset, "", -1)}
        self._call(lambda: self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._call(lambda: self._producer.commit_transaction())

    def abort(self) -> None:
        self._call(lambda: self._producer.abort_transaction())

    def close(self) -> None:
        self._producer.close(timeout=WAIT_S)

    def _call(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError) as error:
            raise Fenced(str(error)) from error


TRANSACTORS: Final[dict[str, MakeTransactor]] = {
    "confluent": ConfluentTransactor,
    "aiokafka": AioKafkaTransactor,
    "kafka_python": KafkaPythonTransactor,
}
