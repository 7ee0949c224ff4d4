"""A connection to a cluster: create topics, publish, consume, commit."""

from types import TracebackType
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.api.consumer import Consumption, Start, commit_for
from moldau.api.publisher import Publisher
from moldau.api.queue import Queue
from moldau.api.queue_configs import GroupConfigs
from moldau.api.types import Failed, Headers, Message, Place, Value, checked_name, checked_settings

TIMEOUT_S: Final = 30.0
LOG_LEVEL: Final = 5  # as of syslog: notices and worse
ONLY: Final = "the only one"


def connect(bootstrap_servers: str = "localhost:9092", **config: Any) -> "Connection":
    """Connect to a cluster. Further arguments are librdkafka settings with `_` for `.` (`security_protocol="SSL"`)."""
    # librdkafka prints its log to standard error; its notes on telemetry and the like are of no use there.
    return Connection({"bootstrap.servers": bootstrap_servers, "log_level": LOG_LEVEL, **_dotted(config)})


def _dotted(config: dict[str, Any]) -> dict[str, Any]:
    """Only callbacks, such as `oauth_cb`, and `log_level` have a `_` in their librdkafka names."""
    return {
        name if name.endswith("_cb") or name == "log_level" else name.replace("_", "."): value
        for name, value in config.items()
    }


def _code(failed: Failed) -> int | None:
    return failed.__cause__.args[0].code() if isinstance(failed.__cause__, KafkaException) else None


class Connection:
    """Created by `connect`. Leaving its `with` block waits until all published messages are acknowledged."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = checked_settings(config)
        self._admin = AdminClient(config)
        self._publishers: dict[str, Publisher] = {}  # at most one
        self._consumptions: list[Consumption] = []
        self._queues: list[Queue] = []

    # -- topics

    def create_topic(
        self, name: str, partitions: int = 1, *, replication_factor: int = -1, exists_ok: bool = True, **configs: Any
    ) -> None:
        """Create a topic; its settings have `_` for `.` (`retention_ms=60000`)."""
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        topic = NewTopic(
            checked_name(name, "topic"),
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=settings,
        )
        (created,) = self._admin.create_topics([topic], operation_timeout=TIMEOUT_S).values()
        try:
            self._await(created, name)
        except Failed as failed:
            if not (exists_ok and _code(failed) == KafkaError.TOPIC_ALREADY_EXISTS):
                raise

    def delete_topic(self, name: str) -> None:
        (deleted,) = self._admin.delete_topics([checked_name(name, "topic")], operation_timeout=TIMEOUT_S).values()
        self._await(deleted, name)

    def _await(self, change: Any, name: str) -> None:
        try:
            change.result(TIMEOUT_S)
        except KafkaException as error:
            raise Failed(f"{name}: {error.args[0].str()}") from error
        except TimeoutError as error:
            servers = self._config["bootstrap.servers"]
            raise Failed(f"{name}: no response from {servers} in {TIMEOUT_S:g} s; is the cluster reachable?") from error

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        try:
            found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        except KafkaException as error:
            raise Failed(f"cannot reach {self._config['bootstrap.servers']}: {error.args[0].str()}") from error
        return sorted(name for name in found if not name.startswith("__"))

    # -- messages

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Value = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        waits: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Place | None:
        """Publish bytes and text unchanged, anything else as JSON. With `waits`, wait and return its place.

        Messages of one key keep their order and go to one partition.
        """
        publisher = self._publishers.get(ONLY)
        if publisher is None:  # concurrent threads must share the publisher that is flushed at the end
            publisher = self._publishers.setdefault(ONLY, Publisher(self._config))
        return publisher.publish(topic, value, key, headers, partition, timestamp_ms, waits, timeout_s)

    def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until everything published so far is acknowledged; raise if anything was not."""
        for publisher in self._publishers.values():
            publisher.flush(timeout_s)

    def consume(
        self,
        *topics: str,
        group: str | None = None,
        start: Start = "earliest",
        commits: bool = True,
        idle_s: float | None = None,
        **config: Any,
    ) -> Consumption:
        """Iterate over messages. In a group, each partition is assigned to one member, and offsets are committed.

        `start` is the position of partitions without a committed offset: "earliest", "latest", an offset, or a time.
        `idle_s` ends the iteration after this time without a message; without it, it never ends. Further arguments are
        librdkafka's consumer settings (`group_instance_id="reader-1"`).
        """
        if not topics:
            raise Failed("Name at least one topic to consume.")
        settings = {**self._config, **_dotted(config)}
        consumption = Consumption(settings, topics, group=group, start=start, commits=commits, idle_s=idle_s)
        self._consumptions.append(consumption)
        return consumption

    def commit_offset(self, message: Message | Place, group: str) -> None:
        """Commit the offset after a message without joining the group. Rejected while the group has members."""
        commit_for(self._config, group, message)

    # -- queues

    def queue(
        self,
        name: str,
        *,
        group: str | None = None,
        prefetch: int = 1,
        idle_s: float | None = None,
        **config: Any,
    ) -> Queue:
        """Return the queue on the topic `name`, of the share group `group` (by default of the same name).

        `moldau queue create`, or `create_queue`, creates both. `prefetch` is the number of jobs per fetch: more than
        one is faster for short jobs, but the locks of all of them run while the first one is processed. `idle_s` ends
        an iteration after this time without a job. Further arguments are librdkafka's consumer settings.
        """
        settings = {**self._config, **_dotted(config)}
        configs = GroupConfigs(self._admin, group or name)
        queue = Queue(settings, self.publish, configs, name, group or name, prefetch=prefetch, idle_s=idle_s)
        self._queues.append(queue)
        return queue

    # -- closing

    def close(self) -> None:
        """Flush, and leave every group."""
        try:
            for queue in self._queues:
                queue.close()
            self.flush()
        finally:
            for consumption in self._consumptions:
                consumption.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
