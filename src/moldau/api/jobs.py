"""Jobs: records that a queue has delivered, each with one verdict.

A verdict goes to the receiver that got the job. It is sent with the receiver's next request, or at once when a caller
waits for it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final, Protocol

from moldau.api.types import Failed, Headers, Message, Place

# Extensions of Moldau: a record with one of these headers is not delivered before its time, if the group has delays.
DELIVER_AT: Final = "moldau-deliver-at"  # ms since the epoch
DELIVER_AFTER: Final = "moldau-deliver-after"  # ms, from the record's timestamp
EARLIER_ATTEMPTS: Final = "moldau-attempts"  # of the record that `retry(in_=…)` replaced by this one
OWN_HEADERS: Final = frozenset({DELIVER_AT, DELIVER_AFTER, EARLIER_ATTEMPTS})

POLL_S: Final = 0.2  # the longest time for which a poll keeps others from giving verdicts

Delay = float | timedelta

logger = logging.getLogger(__name__)


class Verdict(IntEnum):
    """The values of `confluent_kafka.AcknowledgeType`, which older versions lack."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


class JobReceiver(Protocol):
    """How a job reports its verdict."""

    def settle(self, job: "Job", verdict: Verdict, *, waits: bool) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """One delivery of a record. Call `ack`, `retry` or `reject` once; without a verdict it is delivered again."""

    message: Message
    attempt: int
    _receiver: JobReceiver
    _retry_later: "Callable[[Job, Delay], None]"
    is_settled: bool = False

    @property
    def place(self) -> Place:
        """Topic, partition and offset, which identify the record."""
        return self.message.place

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def value(self) -> bytes | None:
        return self.message.value

    @property
    def text(self) -> str | None:
        """The value as text."""
        return self.message.text

    def json(self) -> Any:
        """Parse the value as JSON."""
        return self.message.json()

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return self.message.headers

    def ack(self, *, waits: bool = False) -> None:
        """The job is done: it is never delivered again. With `waits`, return once this is durable."""
        self._receiver.settle(self, Verdict.ACCEPT, waits=waits)

    def retry(self, in_: Delay | None = None) -> None:
        """The attempt failed: deliver it again, after the back-off of the group, or `in_` seconds.

        `in_` puts a copy of the record with a delay and acknowledges this one; the group must have delays. After the
        last attempt, both reject the job.
        """
        if in_ is None:
            self._receiver.settle(self, Verdict.RELEASE, waits=False)
        else:
            self._check_open()
            self._retry_later(self, in_)

    def reject(self, reason: str = "") -> None:
        """The job can never succeed: do not deliver it again. A group with dead letters keeps a copy.

        The reason is logged here: the protocol has no field for it.
        """
        self._receiver.settle(self, Verdict.REJECT, waits=False)
        logger.info("%s rejected: %s", self.place, reason or "no reason given")

    def _check_open(self) -> None:
        if self.is_settled:
            raise Failed(f"{self.place} has its verdict already.")


def milliseconds(delay: Delay) -> int:
    """Convert seconds or a time difference; raise `Failed` for negative values."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= seconds < 1e12:
        raise Failed(f"A delay of {seconds} s is invalid: use 0 or more seconds.")
    return round(seconds * 1000)


def earlier_attempts(headers: tuple[tuple[str, bytes | None], ...]) -> int:
    """Attempts of the records that this one replaces."""
    for name, value in headers:
        if name == EARLIER_ATTEMPTS and value is not None and value.isdigit() and len(value) < 10:
            return int(value)
    return 0


def headers_of_retry(job: Job, delay: Delay) -> Headers:
    """The headers of a record that replaces the job."""
    kept: list[tuple[str, bytes | str | None]] = [each for each in job.headers if each[0] not in OWN_HEADERS]
    kept.append((DELIVER_AFTER, b"%d" % milliseconds(delay)))
    kept.append((EARLIER_ATTEMPTS, b"%d" % job.attempt))
    return kept
