"""Recorded librdkafka clients: idempotent producers, a consumer group, a final reader."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import confluent_kafka as library

from moldau_dev.history.recorder import Recorder

UNACKNOWLEDGED_MAX: Final = 300
POLL_S: Final = 0.1
READS_PER_POLL_MAX: Final = 100
COMMIT_EVERY: Final = 50
FLUSH_S_MAX: Final = 120.0
JOIN_S_MAX: Final = 180.0
# Brokers crash all the time, so clients reconnect quickly.
PATIENCE: Final = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 1_000,
}


class _NullLogger:
    """Drops the log of librdkafka: connections are lost on purpose."""

    def log(self, *_: object) -> None:
        return


def number_in(message: Any) -> int:
    return int(message.value().split(b" ", 1)[0])


class RecordedProducer:
    """An idempotent producer in its own thread, which keeps sending under all faults."""

    def __init__(
        self,
        name: str,
        servers: str,
        topic: str,
        partitions: int,
        recorder: Recorder,
        first: int,
        *,
        pause_s: float = 0.0,
    ) -> None:
        self.name = name
        self.acknowledged = 0
        self.problems: list[str] = []
        self._servers, self._topic, self._partitions = servers, topic, partitions
        self._recorder, self._pause_s = recorder, pause_s
        self._number = first  # values are unique: each producer has its own range
        self._under_way = 0
        self._last_ack_s = time.monotonic()
        self._longest_gap_s = 0.0
        self._is_over = threading.Event()
        self._progress = threading.Condition()
        self._producer = self._connect()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def wait_for_more(self, count: int, wait_s: float) -> bool:
        """Wait until `count` more records are acknowledged."""
        goal = self.acknowledged + count
        with self._progress:
            return self._progress.wait_for(lambda: self.acknowledged >= goal, wait_s)

    def longest_gap_s(self) -> float:
        """Return the longest time between two acknowledgements since the last call."""
        with self._progress:
            gap, self._longest_gap_s = max(self._longest_gap_s, time.monotonic() - self._last_ack_s), 0.0
            self._last_ack_s = time.monotonic()
        return gap

    def finish(self) -> None:
        """Stop sending, and wait until all records are acknowledged or failed."""
        self._is_over.set()
        self._thread.join(JOIN_S_MAX)
        left = self._producer.flush(FLUSH_S_MAX)
        if left:
            self.problems.append(f"{self.name}: {left} records are still in flight after {FLUSH_S_MAX:.0f} s")

    def _connect(self) -> Any:
        return library.Producer(
            {
                **PATIENCE,
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 20,
                "message.timeout.ms": 300_000,
                "logger": _NullLogger(),
            }
        )

    def _run(self) -> None:
        try:
            while not self._is_over.wait(self._pause_s):
                if self._under_way < UNACKNOWLEDGED_MAX:
                    self._send()
                    self._producer.poll(0.002)
                else:
                    self._producer.poll(0.02)
        except library.KafkaException as error:  # fatal error of an idempotent producer
            self.problems.append(f"{self.name}: {error}")

    def _send(self) -> None:
        number, self._number = self._number, self._number + 1
        partition = number % self._partitions
        sent = {"key": f"{self._topic}-{partition}", "value": number}
        self._recorder.invoke(self.name, "send", sent)
        value = b"%d %s" % (number, b"." * (number % 200))
        self._under_way += 1
        self._producer.produce(
            self._topic,
            value,
            partition=partition,
            on_delivery=lambda error, message: self._settle(sent, error, message),
        )

    def _settle(self, sent: dict[str, Any], error: Any, message: Any) -> None:
        self._under_way -= 1
        if error is not None:
            self._recorder.info(self.name, "send", sent)
            if error.code() != library.KafkaError._PURGE_QUEUE:  # follows from an error that is already reported
                self.problems.append(f"{self.name}: {error}")
            return
        self._recorder.ok(self.name, "send", {**sent, "offset": message.offset()})
        with self._progress:
            self.acknowledged += 1
            now_s = time.monotonic()
            self._longest_gap_s = max(self._longest_gap_s, now_s - self._last_ack_s)
            self._last_ack_s = now_s
            self._progress.notify_all()


class RecordedConsumer:
    """A group member in its own thread, which commits from time to time."""

    def __init__(
        self, name: str, servers: str, group: str, topic: str, recorder: Recorder, protocol: Mapping[str, object]
    ) -> None:
        self.name = name
        self.problems: list[str] = []
        self.ends: dict[str, int] = {}  # end of what it has read
        self._group, self._topic, self._recorder = group, topic, recorder
        self._is_over = threading.Event()
        self._reads: dict[str, list[list[int]]] = {}
        self._keys: dict[str, None] = {}
        self._uncommitted = 0
        self._consumer = library.Consumer(
            {
                **PATIENCE,
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **protocol,
                "logger": _NullLogger(),
            }
        )
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._recorder.note(self.name, "subscribe", {"group": self._group, "topics": [self._topic]})
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._thread.start()

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join(JOIN_S_MAX)

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._poll()
            self._commit()
        except library.KafkaException as error:
            self.problems.append(f"{self.name}: {error}")

    def _poll(self) -> None:
        """Record all immediately available records in one line of the history."""
        self._recorder.invoke(self.name, "poll")
        count, wait_s = 0, POLL_S
        while count < READS_PER_POLL_MAX and (message := self._consumer.poll(wait_s)) is not None:
            self._take(message)
            count, wait_s = count + 1, 0.0
        self._record_poll()
        self._uncommitted += count
        if self._uncommitted >= COMMIT_EVERY:
            self._commit()

    def _take(self, message: Any) -> None:
        if message.error() is None:
            key = f"{message.topic()}-{message.partition()}"
            self._reads.setdefault(key, []).append([message.offset(), number_in(message)])
            self.ends[key] = max(self.ends.get(key, 0), message.offset() + 1)
        elif message.error().code() == library.KafkaError.OFFSET_OUT_OF_RANGE:
            self.problems.append(f"{self.name}: {message.error()}")

    def _record_poll(self) -> None:
        reads, self._reads = self._reads, {}
        self._recorder.ok(self.name, "poll", reads)

    def _commit(self) -> None:
        self._uncommitted = 0
        try:
            self._consumer.commit(asynchronous=False)
        except library.KafkaException:
            return  # the next owner of the partition reads them again: at least once

    def _assigned(self, _: Any, places: Sequence[Any]) -> None:
        self._change(places, is_taken=True)

    def _revoked(self, _: Any, places: Sequence[Any]) -> None:
        self._change(places, is_taken=False)

    def _change(self, places: Sequence[Any], *, is_taken: bool) -> None:
        """Handle a rebalance during a poll: records read so far belong to the previous assignment."""
        self._record_poll()
        for place in places:
            key = f"{place.topic}-{place.partition}"
            if is_taken:
                self._keys[key] = None
            else:
                self._keys.pop(key, None)
        self._recorder.note(self.name, "assign", list(self._keys))
        self._recorder.invoke(self.name, "poll")

    def close(self) -> None:
        try:
            self._recorder.invoke(self.name, "poll")
            self._consumer.close()
            self._record_poll()
        except library.KafkaException as error:
            self.problems.append(f"{self.name}: {error}")


def read_everything(servers: str, topic: str, partitions: int, recorder: Recorder, wait_s: float) -> dict[int, int]:
    """Read every record from first to last; return the end offset of each partition."""
    name = "last-reader"
    consumer = library.Consumer(
        {
            **PATIENCE,
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "logger": _NullLogger(),
        }
    )
    ends = {}
    for index in range(partitions):
        place = library.TopicPartition(topic, index, 0)
        _, ends[index] = consumer.get_watermark_offsets(place, timeout=wait_s)
        consumer.assign([place])
        recorder.note(name, "assign", [])
        recorder.note(name, "assign", [f"{topic}-{index}"])
        position = 0
        while position < ends[index]:
            recorder.invoke(name, "poll")
            messages: list[Any] = [
                each for each in consumer.consume(min(500, ends[index] - position), wait_s) if each.error() is None
            ]
            recorder.ok(name, "poll", {f"{topic}-{index}": [[each.offset(), number_in(each)] for each in messages]})
            if not messages:
                break
            position = messages[-1].offset() + 1
    consumer.close()
    return ends
