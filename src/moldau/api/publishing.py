"""Publishing: batched in the background, idempotent, with bounded memory; failures are never silent."""

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from moldau.api.words import Failed, Headers, Place, Value, encoded, encoded_headers

FULL_WAIT_S: Final = 1.0
FAILURES_KEPT: Final = 10


class Publisher:
    """One idempotent producer. What could not be delivered is raised by the next call, `flush`, or the end."""

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
        placed: list[Place] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                placed.append(Place(message.topic(), message.partition(), message.offset()))
            else:
                self._note(f"{topic}: {error.str()}")

        options: dict[str, Any] = {}
        if partition is not None:
            options["partition"] = partition
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        self._enqueue(
            topic,
            value=encoded(value),
            key=encoded(key),
            headers=encoded_headers(headers),
            on_delivery=delivered,
            **options,
        )
        if not waits:
            self._producer.poll(0)
            return None
        self.flush(timeout_s)
        return placed[0]

    def _enqueue(self, topic: str, **message: Any) -> None:
        """A full queue is back-pressure: wait for room rather than lose or grow."""
        while True:
            try:
                self._producer.produce(topic, **message)
                return
            except BufferError:
                self._producer.poll(FULL_WAIT_S)
                self._raise_failures()
            except KafkaException as error:
                raise Failed(f"{topic}: {error.args[0].str()}") from error

    def flush(self, timeout_s: float) -> None:
        """Until everything published so far is acknowledged; raises if anything was not."""
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
