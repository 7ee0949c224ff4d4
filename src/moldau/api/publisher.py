"""The publisher: background batches, idempotence, bounded memory; no failure is lost."""

from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from moldau.api.types import Failed, Headers, Place, Value, checked_name, encoded, encoded_headers

FULL_WAIT_S: Final = 1.0
LOOK_S: Final = 0.1
FAILURES_KEPT: Final = 10


@dataclass(slots=True)
class _Delivery:
    """The outcome of one message."""

    is_awaited: bool
    place: Place | None = None
    failure: str | None = None

    @property
    def is_open(self) -> bool:
        return self.place is None and self.failure is None


class Publisher:
    """One idempotent producer, for any number of threads.

    A caller that waits for a message gets its own failure. Other failures are raised by the next call, `flush`, or
    `close`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._producer = Producer({"enable.idempotence": True, "compression.type": "lz4", **config})
        self._failures: list[str] = []
        self._failure_count = 0

    def publish(
        self,
        topic: str,
        value: Value,
        key: Value,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        waits: bool,
        timeout_s: float,
    ) -> Place | None:
        self._raise_failures()
        delivery = _Delivery(waits)

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                delivery.place = Place(message.topic(), message.partition(), message.offset())
            elif delivery.is_awaited:
                delivery.failure = f"{topic}: {error.str()}"
            else:
                self._note(f"{topic}: {error.str()}")

        options: dict[str, Any] = {}
        if partition is not None:
            options["partition"] = partition
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        self._enqueue(
            checked_name(topic, "topic"),
            value=encoded(value),
            key=encoded(key),
            headers=encoded_headers(headers),
            on_delivery=delivered,
            **options,
        )
        if not waits:
            self._producer.poll(0)
            return None
        return self._awaited(topic, delivery, timeout_s)

    def _enqueue(self, topic: str, **message: Any) -> None:
        """A full queue is back-pressure: wait for room instead of dropping messages or growing."""
        while True:
            try:
                self._producer.produce(topic, **message)
                return
            except BufferError:
                self._producer.poll(FULL_WAIT_S)
                self._raise_failures()
            except KafkaException as error:
                raise Failed(f"{topic}: {error.args[0].str()}") from error

    def _awaited(self, topic: str, delivery: _Delivery, timeout_s: float) -> Place:
        """Wait for this message only; other messages may stay queued."""
        waited_s = 0.0
        while delivery.is_open and waited_s < timeout_s:
            if not self._producer.flush(min(LOOK_S, timeout_s - waited_s)) and delivery.is_open:
                self._producer.poll(LOOK_S)  # another thread is running its callback
            waited_s += LOOK_S
        if delivery.failure is not None:
            raise Failed(delivery.failure)
        if delivery.place is None:
            delivery.is_awaited = False
            raise Failed(f"{topic}: not acknowledged in {timeout_s:g} s; is the cluster reachable?")
        return delivery.place

    def flush(self, timeout_s: float) -> None:
        """Wait until everything published so far is acknowledged; raise if anything was not."""
        left = self._producer.flush(timeout_s)
        self._raise_failures()
        if left:
            raise Failed(f"{left} messages were not acknowledged in {timeout_s:g} s; is the cluster reachable?")

    def _note(self, failure: str) -> None:
        self._failure_count += 1
        if len(self._failures) < FAILURES_KEPT:
            self._failures.append(failure)

    def _raise_failures(self) -> None:
        if self._failures:
            first, count = self._failures[0], self._failure_count
            self._failures, self._failure_count = [], 0
            raise Failed(first if count == 1 else f"{count} messages were not delivered, the first: {first}")
