"""The driver's metadata requests, through librdkafka, which supports all security protocols."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec

from moldau.model.ids import TopicPartition
from pyspark_moldau.options.offset_limits import Offsets
from pyspark_moldau.options.source_options import Assignment, Pattern, SourceOptions, Subscription, Topics
from pyspark_moldau.source.read_plan import Topic, UnknownTopic
from pyspark_moldau.source.topic_ids import normalize_topic_id

log = logging.getLogger("pyspark_moldau")

Result = TypeVar("Result")

_REQUEST_S_MAX: Final = 30.0
_FIRST_REQUEST_S_MAX: Final = 10.0  # includes the connection; an unreachable cluster is reported after it
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_INSECURE: Final = frozenset({KafkaError._SSL, KafkaError._AUTHENTICATION})  # not retriable
_UNREACHABLE: Final = frozenset({KafkaError._TRANSPORT, KafkaError._RESOLVE})
_LOG_CRITICAL_ONLY: Final = 2  # librdkafka logs each connection attempt; the error callback has the cause
# Consumer settings, about which an admin client would log warnings.
_CONSUMER_ONLY: Final = frozenset(
    "allow.auto.create.topics check.crcs fetch.max.bytes fetch.wait.max.ms fetch.min.bytes isolation.level "
    "max.partition.fetch.bytes".split()
)


class BrokersUnreachable(RuntimeError):
    """No bootstrap server accepted a connection."""


class ConfluentCluster:
    """Implements `Cluster` for planning. Clients are created on first use."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin_client: AdminClient | None = None
        self._consumers: dict[str, Consumer] = {}
        self._has_responded = False
        self._last_error: KafkaError | None = None  # from the error callback, which has the root cause of a timeout

    def topics(self, subscription: Subscription) -> dict[str, Topic]:
        match subscription:
            case Topics(names):
                wanted = list(names)
            case Assignment(partitions):
                wanted = list(dict.fromkeys(each.topic for each in partitions))
            case Pattern():
                listed = self._retry(lambda: self._admin().list_topics(timeout=self._timeout_s).topics)
                wanted = sorted(name for name in listed if subscription.matches(name))
        takes_internal = not isinstance(subscription, Pattern)  # patterns match no internal topics
        return self._retry(lambda: self._describe(wanted, takes_internal=takes_internal)) if wanted else {}

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._list(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._list(dict.fromkeys(partitions, OffsetSpec.latest()))

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found = self._list({where: OffsetSpec.for_timestamp(time_ms) for where, time_ms in times_ms.items()})
        return {where: offset if offset >= 0 else None for where, offset in found.items()}

    def commit(self, group: str, offsets: Offsets) -> None:
        places = [Place(where.topic, where.partition, offset) for where, offset in sorted(offsets.items())]
        for place in self._consumer(group).commit(offsets=places, asynchronous=False) or ():
            if place.error is not None:
                raise KafkaException(place.error)

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._admin_client = None

    def _describe(self, names: list[str], *, takes_internal: bool) -> dict[str, Topic]:
        futures = self._admin().describe_topics(TopicCollection(names), request_timeout=self._timeout_s)
        found = {}
        for name, future in futures.items():
            try:
                described = future.result()
            except KafkaException as error:
                if error.args[0].code() not in _GONE:
                    raise
                continue
            if described.is_internal and not takes_internal:
                continue
            partitions = tuple(sorted(each.id for each in described.partitions))
            found[name] = Topic(normalize_topic_id(str(described.topic_id)), partitions)
        return found

    def _list(self, specs: Mapping[TopicPartition, OffsetSpec]) -> Offsets:
        try:
            return self._retry(lambda: self._list_offsets(specs)) if specs else {}
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                topics = ", ".join(sorted({where.topic for where in specs}))
                raise UnknownTopic(f"Cannot list offsets of {topics}: {error.args[0].str()}") from error
            raise

    def _list_offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> Offsets:
        is_committed = self._options.kafka.reads_committed
        futures: dict[Place, Future[Any]] = self._admin().list_offsets(
            {Place(where.topic, where.partition): spec for where, spec in specs.items()},
            isolation_level=IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout_s,
        )
        return {TopicPartition(place.topic, place.partition): each.result().offset for place, each in futures.items()}

    def _retry(self, attempt: Callable[[], Result]) -> Result:
        """Retry `fetchOffset.numRetries` times after retriable errors; an authentication failure is not.

        A cluster that has not responded yet and cannot be connected to is reported without retries.
        """
        for tries_left in range(self._options.retries, -1, -1):
            try:
                result = attempt()
            except KafkaException as error:
                cause, background = error.args[0], self._background_error()
                self._check_reachable(background, error)
                if tries_left == 0 or cause.fatal() or (background is not None and background.code() in _INSECURE):
                    if background is None:
                        raise
                    raise KafkaException(KafkaError(cause.code(), f"{cause.str()}: {background.str()}")) from error
                log.warning("Request to the cluster failed, retrying: %s", cause)
                time.sleep(self._options.retry_interval_ms / 1000)
            else:
                self._has_responded = True
                return result
        raise AssertionError("the last attempt returns or raises")

    def _check_reachable(self, background: KafkaError | None, error: KafkaException) -> None:
        if not self._has_responded and background is not None and background.code() in _UNREACHABLE:
            servers = self._options.kafka.bootstrap_servers
            raise BrokersUnreachable(
                f"Cannot connect to any broker of 'kafka.bootstrap.servers' {servers}: {background.str()}"
            ) from error

    @property
    def _timeout_s(self) -> float:
        return _REQUEST_S_MAX if self._has_responded else _FIRST_REQUEST_S_MAX

    def _background_error(self) -> KafkaError | None:
        if self._admin_client is not None:
            self._admin_client.poll(0)
        return self._last_error

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # not a root cause
            self._last_error = error

    def _admin(self) -> AdminClient:
        if self._admin_client is None:
            given = self._options.kafka.librdkafka
            settings: dict[str, Any] = {name: given[name] for name in given if name not in _CONSUMER_ONLY}
            settings |= {"error_cb": self._on_error, "log_level": _LOG_CRITICAL_ONLY}
            self._admin_client = AdminClient(settings)
        return self._admin_client

    def _consumer(self, group: str) -> Consumer:
        if group not in self._consumers:
            settings = {**self._options.kafka.librdkafka, "group.id": group, "enable.auto.commit": False}
            self._consumers[group] = Consumer(settings)
        return self._consumers[group]
