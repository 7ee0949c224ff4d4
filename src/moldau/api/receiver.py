"""A receiver: one member of a queue's share group.

A confluent-kafka `ShareConsumer` may be used by one thread at a time, and in explicit mode it polls only when all
records of the last poll have a verdict. The receiver therefore hands out one job at a time: requesting the next one
releases a job without a verdict. Its lock lets other threads give verdicts and close it; a poll holds it for at most
`POLL_S`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaException, ShareConsumer, TopicPartition

from moldau.api.consumer import message_of
from moldau.api.jobs import POLL_S, Delay, Job, Verdict, earlier_attempts
from moldau.api.types import Failed, Place, checked_settings

logger = logging.getLogger(__name__)

COMMIT_S: Final = 30.0
LOST_HINT: Final = "the job may be delivered again"


class Receiver:
    """Yields jobs one by one; `close` releases those without a verdict and leaves the group."""

    def __init__(
        self,
        config: dict[str, Any],
        topic: str,
        group: str,
        prefetch: int,
        retry_later: Callable[[Job, Delay], None],
    ) -> None:
        settings = {
            "max.poll.records": prefetch,
            **config,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
        self._consumer = _new_consumer(settings)
        self._consumer.set_acknowledgement_commit_callback(self._acknowledged)
        self._consumer.subscribe([topic])
        self._retry_later = retry_later
        self._lock = threading.RLock()
        self._delivered: deque[Job] = deque()  # by the last poll, not yet handed out
        self._job: Job | None = None  # handed out last
        self._has_unsent_verdicts = False
        self.is_closed = False
        self.lost_verdicts = 0

    def take(self, wait_s: float) -> Job | None:
        """Return the next job, or None after `wait_s` seconds, or once closed."""
        end_s = time.monotonic() + wait_s
        while not self.is_closed:
            left_s = end_s - time.monotonic()
            job = self.take_soon(min(POLL_S, max(left_s, 0.0)))
            if job is not None or left_s <= POLL_S:
                return job
        return None

    def take_soon(self, wait_s: float) -> Job | None:
        """Poll once."""
        with self._lock:
            if self.is_closed:
                return None
            self._release_job()
            if self._delivered:
                self._send_verdicts()  # without a poll, nothing else would send them while the next job runs
            else:
                self._poll(wait_s)
            self._job = self._delivered.popleft() if self._delivered else None
            return self._job

    def _poll(self, wait_s: float) -> None:
        try:
            messages = list(self._consumer.poll(wait_s))
        except KafkaException as error:
            raise Failed(f"The queue could not be read: {error.args[0].str()}") from error
        self._has_unsent_verdicts = False
        for each in messages:
            message = message_of(each)
            attempt = earlier_attempts(message.headers) + (each.delivery_count() or 1)
            self._delivered.append(Job(message, attempt, self, self._retry_later))

    def settle(self, job: Job, verdict: Verdict, *, waits: bool) -> None:
        """Record a verdict; with `waits`, send it and wait until it is durable."""
        with self._lock:
            if job.is_settled:
                raise Failed(f"{job.place} has its verdict already.")
            if self.is_closed or job is not self._job:
                raise Failed(f"{job.place} was released: its queue was closed, or the next job was requested.")
            self._acknowledge(job, verdict)
            if waits:
                self._commit(job)

    def _acknowledge(self, job: Job, verdict: Verdict) -> None:
        topic, partition, offset = job.place
        try:
            self._consumer.acknowledge_offset(topic, partition, offset, AcknowledgeType(verdict))
        except (IllegalStateException, KafkaException, ValueError) as error:
            raise Failed(f"{job.place} could not be acknowledged: {error}") from error
        job.is_settled = True
        self._has_unsent_verdicts = True

    def _commit(self, job: Job) -> None:
        try:
            results = self._consumer.commit_sync(COMMIT_S)
        except KafkaException as error:
            raise Failed(f"{job.place} could not be acknowledged: {error.args[0].str()}") from error
        self._has_unsent_verdicts = False
        failure = results.get(TopicPartition(job.place.topic, job.place.partition))
        if failure is not None:
            raise Failed(f"{job.place} could not be acknowledged: {failure.args[0].str()}; {LOST_HINT}")

    def _send_verdicts(self) -> None:
        if self._has_unsent_verdicts:
            self._consumer.commit_async()
            self._has_unsent_verdicts = False

    def _acknowledged(self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        """The callback of librdkafka: verdicts arrived, or some did not."""
        if error is None:
            return
        for partition, found in offsets.items():
            self.lost_verdicts += len(found)
            for offset in sorted(found):
                place = Place(partition.topic, partition.partition, offset)
                logger.warning("%s: verdict not accepted: %s; %s", place, error.args[0].str(), LOST_HINT)

    def _release_job(self) -> None:
        job, self._job = self._job, None
        if job is not None and not job.is_settled:
            self._acknowledge(job, Verdict.RELEASE)

    def close(self) -> None:
        """Release jobs without a verdict, send all verdicts, leave the group."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            try:
                self._consumer.close()
            except KafkaException as error:
                logger.warning("The queue's group could not be left: %s", error.args[0].str())


def _new_consumer(settings: dict[str, Any]) -> ShareConsumer:
    try:
        return ShareConsumer(checked_settings(settings))
    except KafkaException as error:
        raise Failed(f"Invalid settings of a queue: {error.args[0].str()}") from error
