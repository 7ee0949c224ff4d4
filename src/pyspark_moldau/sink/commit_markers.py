"""Commit markers: a record for each committed batch, written in the batch's own transaction.

The marker topic is compacted, keeping the newest marker per writer, and read to its end with `read_committed`.
"""

import json
import logging
import time
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from pyspark_moldau.options.kafka_settings import KafkaSettings

log = logging.getLogger("pyspark_moldau")

_REQUEST_S_MAX: Final = 30.0
_APPEAR_S_MAX: Final = 60.0
# Another writer's open transaction may hide the marker; brokers abort it after at most 15 minutes.
_READ_S_MAX: Final = 960.0
_WARN_EVERY_S: Final = 10.0
_POLL_S: Final = 1.0
_TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(24 * 3_600_000),
}
_PRODUCER_ONLY: Final = frozenset(
    "acks batch.size compression.level compression.type delivery.timeout.ms enable.idempotence linger.ms "
    "max.in.flight.requests.per.connection message.max.bytes retries transaction.timeout.ms".split()
)


class MarkersUnreadable(RuntimeError):
    """The last committed batch cannot be determined, so nothing may be published."""


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """A committed batch and its row count."""

    batch: int
    rows: int
    topic: str | None
    run: str | None = None  # the run that published it

    def to_bytes(self) -> bytes:
        return json.dumps({"batch": self.batch, "rows": self.rows, "topic": self.topic, "run": self.run}).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> "CommitMarker":
        said = json.loads(text)
        return cls(int(said["batch"]), int(said["rows"]), said["topic"], said.get("run"))


class CommitMarkers:
    """Access to the marker topic for one writer."""

    def __init__(self, kafka: KafkaSettings, topic: str, read_s_max: float = _READ_S_MAX) -> None:
        self.topic, self._read_s_max = topic, read_s_max
        self._settings = {name: value for name, value in kafka.librdkafka.items() if name not in _PRODUCER_ONLY}
        self._admin = AdminClient(dict(self._settings), logger=log)

    def prepare(self) -> None:
        """Create the topic if it is missing, and check that it is compacted."""
        if self.topic not in self._admin.list_topics(timeout=_REQUEST_S_MAX).topics:
            self._create()
        policy = self._policy()
        if policy is not None and policy != "compact":
            raise MarkersUnreadable(
                f"Topic {self.topic} has cleanup.policy={policy}: it would lose the commit markers over time. Set it "
                "to compact, or use another topic with the option 'commitTopic'."
            )

    def newest(self, writer: str) -> CommitMarker | None:
        """Return the marker of the writer's last committed batch. Its transactions must have ended before."""
        ends = self._ends()
        consumer = self._consumer("read_committed")
        try:
            return self._read(consumer, writer.encode(), ends)
        finally:
            consumer.close()

    def _create(self) -> None:
        wanted = NewTopic(self.topic, num_partitions=1, replication_factor=-1, config=dict(_TOPIC_SETTINGS))
        try:
            self._admin.create_topics([wanted], request_timeout=_REQUEST_S_MAX)[self.topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + _APPEAR_S_MAX
        while not self._partitions():
            if time.monotonic() > deadline:
                raise MarkersUnreadable(f"Topic {self.topic} was created, but has no leader after {_APPEAR_S_MAX:g} s.")
            time.sleep(_POLL_S / 20)

    def _policy(self) -> str | None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        try:
            found = self._admin.describe_configs([resource], request_timeout=_REQUEST_S_MAX)[resource].result()
        except KafkaException as error:
            log.warning("Cannot read the configuration of topic %s, which must be compacted: %s", self.topic, error)
            return None
        return str(found["cleanup.policy"].value)

    def _partitions(self) -> list[int]:
        described: Any = self._admin.list_topics(self.topic, timeout=_REQUEST_S_MAX).topics[self.topic]
        if described.error is not None:
            return []
        return sorted(number for number, each in described.partitions.items() if each.leader >= 0)

    def _ends(self) -> dict[int, int]:
        """Return the high watermarks: offsets before them may contain this writer's markers."""
        places = [TopicPartition(self.topic, number) for number in self._partitions()]
        if not places:
            raise MarkersUnreadable(f"Topic {self.topic} has no leader.")
        futures = self._admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_REQUEST_S_MAX,
        )
        return {place.partition: future.result().offset for place, future in futures.items()}

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                **self._settings,
                "group.id": "moldau-spark-commits",  # required by librdkafka; never joined or committed to
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "enable.partition.eof": "true",
                "fetch.wait.max.ms": "20",  # only an empty response shows the end of the log
            },
            logger=log,
        )

    def _read(self, consumer: Consumer, key: bytes, ends: dict[int, int]) -> CommitMarker | None:
        newest: CommitMarker | None = None
        missing = {number: end for number, end in ends.items() if end > 0}
        consumer.assign([TopicPartition(self.topic, number, 0) for number in missing])
        started = warned = time.monotonic()
        while missing:
            message = consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                newest = _newer(newest, message, key)
            elif message is not None and self._is_at_end(message, key, missing):
                missing.pop(message.partition() or 0)
            now = time.monotonic()
            if missing and now - started > self._read_s_max:
                raise MarkersUnreadable(f"Topic {self.topic} could not be read to its end: is a transaction open?")
            if missing and now - warned > _WARN_EVERY_S:
                warned = now
                log.warning("Waiting for topic %s: an open transaction blocks reading to its end.", self.topic)
        return newest

    def _is_at_end(self, message: Any, key: bytes, missing: dict[int, int]) -> bool:
        """Whether all markers of this writer have been read when a fetch stops at the end or an open transaction."""
        error = message.error()
        if error.code() != KafkaError._PARTITION_EOF:
            if not error.retriable():
                raise KafkaException(error)
            return False
        partition, stopped_at = message.partition(), message.offset()
        if partition not in missing:
            return False
        end = missing[partition]
        return stopped_at >= end or not self._has_hidden(partition, stopped_at, end, key)

    def _has_hidden(self, partition: int, start: int, end: int, key: bytes) -> bool:
        """Whether a marker of this writer lies behind another writer's open transaction, which must end first."""
        consumer = self._consumer("read_uncommitted")
        deadline = time.monotonic() + _REQUEST_S_MAX
        try:
            consumer.assign([TopicPartition(self.topic, partition, start)])
            while time.monotonic() < deadline:
                message = consumer.poll(_POLL_S)
                if message is None:
                    continue
                if message.error() is None and message.key() == key:
                    return True
                if (message.offset() or 0) >= end:
                    return False
            return True  # the scan did not reach the end: assume there is one
        finally:
            consumer.close()


def _newer(newest: CommitMarker | None, message: Any, key: bytes) -> CommitMarker | None:
    if message.key() != key or not message.value():
        return newest
    found = CommitMarker.from_bytes(message.value())
    return found if newest is None or found.batch > newest.batch else newest
