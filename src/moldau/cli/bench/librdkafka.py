"""The same measurements through librdkafka, the most common client, with its own batching and threads."""

import importlib.util
import time
from dataclasses import dataclass
from typing import Any, Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.rounds import Round
from moldau.cli.errors import CommandError

PRODUCE_NAME: Final = "librdkafka produce, each record a request"
CONSUME_NAME: Final = "librdkafka consume, each record a request"
LATENCY_NAME: Final = "librdkafka acknowledge"
QUEUE_MESSAGES_MAX: Final = 100_000
CONSUMED_AT_ONCE: Final = 10_000
SILENCE_S_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class RecordsCase:
    """A number of records with values of one size."""

    records: int
    value_bytes: int
    partitions: int


def require_librdkafka() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise CommandError(
            "--client librdkafka needs confluent-kafka, which is not installed: pip install confluent-kafka"
        )


def run_throughput(bench: Bench, case: RecordsCase) -> dict[str, list[Round]]:
    """Each round produces to a fresh topic and reads it back."""
    consumed: list[Round] = []
    measured = bench.interleave({PRODUCE_NAME: lambda: _round(bench, case, consumed)})
    return {**measured, CONSUME_NAME: consumed[1:]}  # the first was the warm-up


def _round(bench: Bench, case: RecordsCase, consumed: list[Round]) -> Round:
    with bench.cluster.topic(case.partitions) as topic:
        where = bench.cluster.bootstrap_servers
        produced = _measured(bench, case, ProduceRecords(where, topic.name, case))
        consumed.append(_measured(bench, case, ConsumeRecords(where, topic.name, case)))
    return produced


def _measured(bench: Bench, case: RecordsCase, job: "ProduceRecords | ConsumeRecords") -> Round:
    before = bench.cluster.cpu_s()
    elapsed_s = bench.generator.run(job)
    after = bench.cluster.cpu_s()
    spent = after - before if before is not None and after is not None else None
    return Round(case.records, elapsed_s, case.records * case.value_bytes, case.records, server_cpu_s=spent)


def run_acknowledgements(bench: Bench, case: RecordsCase, records_per_s: float) -> dict[str, list[Round]]:
    """Produce single records at a fixed rate, with linger.ms=0."""

    def measure() -> Round:
        with bench.cluster.topic(case.partitions) as topic:
            job = AcknowledgeRecords(bench.cluster.bootstrap_servers, topic.name, case, records_per_s)
            samples_ms = bench.generator.run(job)
        elapsed_s = case.records / records_per_s
        return Round(len(samples_ms), elapsed_s, case.records * case.value_bytes, case.records, samples_ms=samples_ms)

    return bench.interleave({LATENCY_NAME: measure})


@dataclass(frozen=True, slots=True)
class ProduceRecords:
    """Produce the records; `run` returns the seconds from the first record to the last acknowledgement."""

    bootstrap_servers: str
    topic: str
    case: RecordsCase

    def run(self) -> float:
        producer = _producer(self.bootstrap_servers, {"linger.ms": 5, "batch.num.messages": 10_000})
        value = bytes(self.case.value_bytes)
        started = time.perf_counter()
        for number in range(self.case.records):
            _offer(producer, self.topic, value, number % self.case.partitions)
        _finish(producer)
        return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class ConsumeRecords:
    """Consume the records; `run` returns the seconds from assignment to the last record."""

    bootstrap_servers: str
    topic: str
    case: RecordsCase

    def run(self) -> float:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": "moldau-bench", "enable.auto.commit": False}
        )
        try:
            places = [TopicPartition(self.topic, each, OFFSET_BEGINNING) for each in range(self.case.partitions)]
            consumer.assign(places)
            started = time.perf_counter()
            count = 0
            while count < self.case.records:
                came = consumer.consume(CONSUMED_AT_ONCE, timeout=SILENCE_S_MAX)
                if not came:
                    raise CommandError(f"librdkafka read {count} of {self.case.records} records, then nothing came")
                count += sum(message.error() is None for message in came)
            return time.perf_counter() - started
        finally:
            consumer.close()


@dataclass(frozen=True, slots=True)
class AcknowledgeRecords:
    """Produce at a fixed rate; `run` returns the milliseconds from each record's due time to its acknowledgement."""

    bootstrap_servers: str
    topic: str
    case: RecordsCase
    records_per_s: float

    def run(self) -> list[float]:
        producer = _producer(self.bootstrap_servers, {"linger.ms": 0})
        value = bytes(self.case.value_bytes)
        samples_ms: list[float] = []
        started = time.perf_counter()
        for number in range(self.case.records):
            due = started + number / self.records_per_s
            while (wait_s := due - time.perf_counter()) > 0:
                producer.poll(wait_s)

            def delivered(error: Any, _: Any, due: float = due) -> None:
                if error is None:
                    samples_ms.append((time.perf_counter() - due) * 1000)

            _offer(producer, self.topic, value, number % self.case.partitions, delivered)
        _finish(producer)
        return samples_ms


def _producer(bootstrap_servers: str, settings: dict[str, Any]) -> Any:
    from confluent_kafka import Producer

    limits = {"queue.buffering.max.messages": QUEUE_MESSAGES_MAX, "acks": "all"}
    return Producer({"bootstrap.servers": bootstrap_servers, **limits, **settings})


def _offer(producer: Any, topic: str, value: bytes, partition: int, delivered: Any = None) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(0.01)


def _finish(producer: Any) -> None:
    left = producer.flush(SILENCE_S_MAX)
    if left:
        raise CommandError(f"librdkafka could not deliver {left} records")
