"""The consumer: an iterator over messages, with or without a group."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from moldau.api.types import Failed, Message, Place, checked_name, checked_settings

Start = str | int | datetime  # "earliest", "latest", an offset, a time
Result = TypeVar("Result")

POLL_S: Final = 0.2
JOIN_MAX_S: Final = 60.0
LOOKUP_S: Final = 30.0
_WHERE: Final = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
_START_VALUES: Final = " or ".join(f"{each!r}" for each in _WHERE)


class Consumption:
    """Iterate over it; leave the `with` block, or call `close`, to leave the group.

    In a group, a message's offset is committed when the next message is requested: after it was processed, so a crash
    repeats messages but loses none (at least once). With `commits=False` only `commit_offset` commits.

    Messages are polled one at a time: requesting the next one is the liveness signal of the group, so only a single
    message that takes longer than `max_poll_interval_ms` loses the membership.

    `idle_s` counts from the last message, and in a group from the first assignment, because joining takes time. A group
    that assigns no partitions within a minute (or `idle_s`, if longer) ends the iteration with `Failed`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        topics: Sequence[str],
        *,
        group: str | None,
        start: Start,
        commits: bool,
        idle_s: float | None,
    ) -> None:
        if isinstance(start, str) and start not in _WHERE:
            raise Failed(f"start={start!r} is invalid: use {_START_VALUES}, an offset or a datetime.")
        if group == "":
            raise Failed("group='' is invalid: use a name, or None to read without a group.")
        for topic in topics:
            checked_name(topic, "topic")
        self._group = group
        self._commits = commits and group is not None
        self._idle_s = idle_s
        self._consumer = _consumer(
            {
                **config,
                "group.id": group or "moldau-api-without-a-group",
                "enable.auto.commit": self._commits,
                "enable.auto.offset.store": False,
                "auto.offset.reset": start if start in _WHERE else "earliest",
                "enable.partition.eof": False,
            }
        )
        self._is_cooperative = _is_cooperative(config)
        self._processed: Any = None
        self._is_assigned = group is None
        self._waited_s = 0.0
        self._failure: Failed | None = None
        if group is None:
            self._consumer.assign(self._places(topics, start))
        else:
            self._consumer.subscribe(list(topics), on_assign=lambda _, given: self._take(given, start))

    # -- start positions

    def _places(self, topics: Sequence[str], start: Start) -> list[TopicPartition]:
        partitions = [TopicPartition(topic, index) for topic in topics for index in self._partitions_of(topic)]
        return self._placed(partitions, start)

    def _partitions_of(self, topic: str) -> list[int]:
        try:
            found = self._consumer.list_topics(topic, timeout=LOOKUP_S).topics[topic]
        except KafkaException as error:
            raise Failed(f"{topic}: {error.args[0].str()}") from error
        if found.error is not None:
            raise Failed(f"{topic}: {found.error.str()}")
        return sorted(found.partitions)

    def _placed(self, partitions: list[TopicPartition], start: Start) -> list[TopicPartition]:
        if isinstance(start, datetime):
            wanted = [TopicPartition(each.topic, each.partition, int(start.timestamp() * 1000)) for each in partitions]
            return _look_up_partitions(lambda: self._consumer.offsets_for_times(wanted, timeout=LOOKUP_S))
        return [TopicPartition(each.topic, each.partition, self._offset_of(each, start)) for each in partitions]

    def _offset_of(self, place: TopicPartition, start: str | int) -> int:
        """Clamp the offset to the log: beyond its end, a consumer would be reset to its start."""
        if isinstance(start, str):
            return _WHERE[start]
        first, end = _look_up(lambda: self._consumer.get_watermark_offsets(place, timeout=LOOKUP_S))
        return int(min(max(start, first), end))

    def _take(self, given: list[TopicPartition], start: Start) -> None:
        if start not in _WHERE:
            try:
                self._seek(given, start)
            except Failed as error:
                self._failure = error  # not raised here: confluent-kafka would keep a reference to it forever
        self._is_assigned = True
        self._waited_s = -POLL_S  # this call was still part of joining

    def _seek(self, given: list[TopicPartition], start: Start) -> None:
        """Committed offsets of the group have precedence over `start`."""
        committed = _look_up_partitions(lambda: self._consumer.committed(given, timeout=LOOKUP_S))
        new = [each for each in committed if each.offset < 0]
        assign = self._consumer.incremental_assign if self._is_cooperative else self._consumer.assign
        assign([each for each in committed if each.offset >= 0] + self._placed(new, start))

    # -- reading

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        self._note_processed()
        self._waited_s = 0.0
        while (found := self._poll()) is None:
            self._waited_s += POLL_S
            if self._has_waited_enough():
                raise StopIteration
        message = message_of(found)
        self._processed = found
        return message

    def _poll(self) -> Any:
        found = self._consumer.poll(POLL_S)
        if self._failure is not None:
            raise self._failure
        return found

    def _has_waited_enough(self) -> bool:
        if self._idle_s is None:
            return False
        if self._is_assigned:
            return self._waited_s >= self._idle_s
        if self._waited_s >= max(self._idle_s, JOIN_MAX_S):
            raise Failed(f"The group {self._group} assigned no partitions within {self._waited_s:.0f} s.")
        return False

    def _note_processed(self) -> None:
        processed, self._processed = self._processed, None
        if processed is None or not self._commits:
            return
        try:
            self._consumer.store_offsets(message=processed)
        except KafkaException as error:
            # The partition was reassigned to another member, which reads the message again.
            if error.args[0].code() != KafkaError._STATE:
                raise Failed(f"{processed.topic()}: {error.args[0].str()}") from error

    def commit_offset(self, message: Message | Place) -> None:
        """Commit the offset after this message for the group; return once the cluster has acknowledged it."""
        if self._group is None:
            raise Failed("Cannot commit without a group: pass group=… to consume.")
        _commit(self._consumer, message)

    # -- closing

    def close(self) -> None:
        """Commit processed messages and leave the group."""
        self._consumer.close()

    def __enter__(self) -> "Consumption":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._note_processed()
        self.close()


def _consumer(config: dict[str, Any]) -> Consumer:
    return Consumer(checked_settings(config))


def _is_cooperative(config: dict[str, Any]) -> bool:
    """Return whether assignments are incremental."""
    assignors = str(config.get("partition.assignment.strategy", ""))
    return "cooperative" in assignors or str(config.get("group.protocol", "")).lower() == "consumer"


def _look_up_partitions(look_up: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    """Look up partitions; raise the error of any."""
    found = _look_up(look_up)
    for each in found:
        if each.error is not None:
            raise Failed(f"{each.topic}-{each.partition}: {each.error.str()}")
    return found


def _look_up(look_up: Callable[[], Result]) -> Result:
    """Convert errors of a lookup to `Failed`."""
    try:
        return look_up()
    except KafkaException as error:
        raise Failed(f"Could not look up the start position: {error.args[0].str()}") from error


def _commit(consumer: Consumer, message: Message | Place) -> None:
    place = message.place if isinstance(message, Message) else message
    try:
        consumer.commit(offsets=[TopicPartition(place.topic, place.partition, place.offset + 1)], asynchronous=False)
    except KafkaException as error:
        raise Failed(f"{place} could not be committed: {error.args[0].str()}") from error


def commit_for(config: dict[str, Any], group: str, message: Message | Place) -> None:
    """Commit without joining the group."""
    consumer = _consumer({**config, "group.id": group, "enable.auto.commit": False})
    try:
        _commit(consumer, message)
    finally:
        consumer.close()


def message_of(message: Any) -> Message:
    error: KafkaError | None = message.error()
    if error is not None:
        topic = message.topic()  # None if the error concerns the group, not a partition
        raise Failed(error.str() if topic is None else f"{topic}: {error.str()}")
    kind, timestamp_ms = message.timestamp()
    return Message(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        tuple(message.headers() or ()),
    )
