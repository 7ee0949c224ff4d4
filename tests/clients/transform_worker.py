"""A worker process that consumes, transforms and produces in transactions; it is killed, paused and restarted.

Every step is recorded in a history. A record at offset 7 of partition 1 is written as `1-7/<this attempt>`, so
that each attempt at a record is distinct.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import confluent_kafka as library

from moldau_dev.chaos.clients import PATIENCE, number_in
from moldau_dev.history.recorder import Recorder

BATCH_MAX = 50
WAIT_S = 30.0
# After losing all brokers, librdkafka rebootstraps, and may then wait for ever in
# `send_offsets_to_transaction` for a broker that it has removed. See docs/clients.md.
RECOVERING = {"metadata.recovery.strategy": "none"} if library.libversion()[1] >= 0x020B0000 else {}


class SilentLogger:
    """Drops librdkafka's messages about lost connections."""

    def log(self, *_: object) -> None:
        return


class GaveUp(Exception):
    """The outcome of the transaction is unknown, or another producer owns the id: only a restart helps."""


class Transformer:
    """A member of the group, with a transactional producer of its own."""

    def __init__(self, options: dict[str, Any], recorder: Recorder) -> None:
        self._name, self._target, self._partitions = options["name"], options["target"], options["partitions"]
        self._recorder = recorder
        self._attempts = 0
        common = {**PATIENCE, "bootstrap.servers": options["servers"], "logger": SilentLogger()}
        self._consumer: Any = library.Consumer({**common, **options["consumer"]})
        self._producer: Any = library.Producer({**common, **RECOVERING, **options["producer"]})
        self._producer.init_transactions()
        self._consumer.subscribe([options["source"]], on_assign=self._changed, on_revoke=self._changed)

    def _changed(self, *_: object) -> None:
        self._recorder.note(self._name, "assign", [])  # it does not resume at its previous position

    def run(self) -> None:
        while True:
            messages = [each for each in self._consumer.consume(BATCH_MAX, timeout=0.1) if each.error() is None]
            if messages:
                self._transform(messages)

    def _transform(self, messages: Sequence[Any]) -> None:
        self._attempts += 1
        polled: dict[str, list[list[int]]] = {}
        for each in messages:
            polled.setdefault(f"{each.topic()}-{each.partition()}", []).append([each.offset(), number_in(each)])
        sends = [self._result(each) for each in messages]
        steps = [["poll", polled], *(["send", f"{self._target}-{place}", value] for place, value in sends)]
        self._recorder.invoke(self._name, "txn", steps)
        try:
            placed = self._commit(messages, sends)
        except library.KafkaException as error:
            self._fall_back(error.args[0])
        else:
            sent = [
                ["send", f"{self._target}-{place}", [offset, value]]
                for (place, value), offset in zip(sends, placed, strict=True)
            ]
            self._recorder.ok(self._name, "txn", [["poll", polled], *sent])

    def _result(self, message: Any) -> tuple[int, str]:
        """Return another partition than that of the input, so that transactions span brokers."""
        source = f"{message.partition()}-{message.offset()}"
        return message.offset() % self._partitions, f"{source}/{self._name}.{self._attempts}"

    def _commit(self, messages: Sequence[Any], sends: Sequence[tuple[int, str]]) -> list[int]:
        placed = [-1] * len(sends)
        self._producer.begin_transaction()
        for index, (place, value) in enumerate(sends):

            def delivered(error: Any, message: Any, index: int = index) -> None:
                placed[index] = -1 if error else message.offset()

            self._producer.produce(self._target, value, partition=place, on_delivery=delivered)
        self._producer.poll(0)
        ends = {(each.topic(), each.partition()): each.offset() + 1 for each in messages}
        offsets = [library.TopicPartition(*place, offset) for place, offset in ends.items()]
        self._producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), WAIT_S)
        self._producer.commit_transaction(WAIT_S)
        return placed

    def _fall_back(self, error: Any) -> None:
        """Abort and seek to the committed offsets, if this attempt is known to have failed."""
        if not error.txn_requires_abort():
            self._recorder.info(self._name, "txn")
            raise GaveUp(str(error))
        try:
            self._producer.abort_transaction(WAIT_S)
        except library.KafkaException as trouble:
            self._recorder.info(self._name, "txn")
            raise GaveUp(str(trouble)) from trouble
        self._recorder.fail(self._name, "txn")
        self._recorder.note(self._name, "crash")
        for place in self._consumer.committed(self._consumer.assignment(), WAIT_S):
            place.offset = max(place.offset, 0)
            self._consumer.seek(place)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    with Recorder(given["history"]) as recorder:
        try:
            Transformer(given, recorder).run()
        except (GaveUp, library.KafkaException) as reason:
            sys.exit(f"{given['name']} gives up: {reason}")
