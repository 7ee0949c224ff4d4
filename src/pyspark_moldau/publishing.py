"""The commit protocol: everything of a batch goes out in one transaction, together with a marker that says so.

    init_transactions   ends what an earlier life has left, and shuts out all other lives of this writer
    read the marker     only now: nobody else can move it any more
    marker = batch      it is out already: a replay, nothing to do
    marker > batch      the checkpoint is older than the sink: refused
    begin, produce all parts in the order of their tasks, produce the marker, commit

A failure leaves no doubt: before `commit` the transaction is aborted; in `commit` only if the error says so. An unknown
outcome is raised, and the marker tells whoever comes next. `reached` hears the names of the places that were passed.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from pyspark_moldau.markers import Marker, Markers
from pyspark_moldau.producing import Outlet
from pyspark_moldau.sink_options import Identity, SinkOptions
from pyspark_moldau.staging import StagedPart, sweep

log = logging.getLogger("pyspark_moldau")

Reached: TypeAlias = Callable[[str], None]

FAIL_POINTS: Final = (
    "started",
    "initialised",
    "marker read",
    "begun",
    "publishing",
    "published",
    "marker sent",
    "flushed",
    "committed",
    "swept",
)

_INIT_S_MAX: Final = 180.0
_CALL_S: Final = 30.0
_ABORT_S_MAX: Final = 60.0
_TIMEOUT_MS_MIN: Final = 60_000
_TIMEOUT_MS_MAX: Final = 900_000
_ROWS_PER_MS: Final = 10
_TIMEOUT_SETTING: Final = "transaction.timeout.ms"
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED})


class CheckpointTooOld(RuntimeError):
    """The sink has batches that the checkpoint does not know of."""


class TakenOver(RuntimeError):
    """Another life of this writer has begun: this one has nothing to say any more."""


class OutcomeUnknown(RuntimeError):
    """The transaction may be committed or not. The next start finds out."""


def nothing(place: str) -> None:
    """Nobody listens."""


def wanted_timeout_ms(options: SinkOptions, rows: int) -> int:
    """How long a transaction of so many rows may stand open, unless the user has said it."""
    by_rows = min(max(_TIMEOUT_MS_MIN, rows // _ROWS_PER_MS), _TIMEOUT_MS_MAX)
    return options.kafka.number(_TIMEOUT_SETTING, by_rows)


class Publisher:
    """One writer's hold on its output: a transactional producer, and the marker of what it last committed."""

    def __init__(self, options: SinkOptions, identity: Identity, rows: int, reached: Reached = nothing) -> None:
        self._writer, self._reached = identity.writer, reached
        self.timeout_ms = wanted_timeout_ms(options, rows)
        self._markers = Markers(options.kafka, options.commit_topic) if identity.is_lasting else None
        self._outlet = Outlet(
            options,
            {"transactional.id": f"moldau-spark-{self._writer}", _TIMEOUT_SETTING: str(self.timeout_ms)},
        )
        self._marker: Marker | None = None

    def open(self) -> None:
        """Shut out all others, then see how far the writer has come."""
        if self._markers is not None:
            self._markers.prepare()
        self._reached("started")
        try:
            _persist(self._outlet.producer.init_transactions, _INIT_S_MAX)
        except KafkaException as error:
            said = f"{error.args[0].str()} (kafka.transaction.timeout.ms is {self.timeout_ms})"
            raise RuntimeError(f"The sink cannot begin its transactions: {said}") from error
        self._reached("initialised")
        if self._markers is not None:
            self._marker = self._markers.newest(self._writer)
        self._reached("marker read")

    def publish(self, marker: Marker, parts: Sequence[StagedPart]) -> bool:
        """Publish a batch, if it is not out yet. Says whether it was published now."""
        if self._marker is not None and self._marker.batch == marker.batch:
            log.info("Batch %d of %s is committed already.", marker.batch, self._writer)
            return False
        if self._marker is not None and self._marker.batch > marker.batch:
            raise CheckpointTooOld(
                f"Batch {marker.batch} of {self._writer} is to be written, and the sink has committed batch "
                f"{self._marker.batch} already: this checkpoint is older than what the sink has committed. "
                "Go on with the newer checkpoint; a fresh one begins a new query, which writes all its rows again."
            )
        self._send(marker, parts)
        self._commit()
        self._marker = marker
        self._reached("committed")
        return True

    def _send(self, marker: Marker, parts: Sequence[StagedPart]) -> None:
        try:
            self._outlet.producer.begin_transaction()
            self._reached("begun")
            for part in sorted(parts, key=lambda part: part.task):
                self._outlet.produce(part.batches(), lambda: self._reached("publishing"))
            self._reached("published")
            if self._markers is not None:
                self._outlet.send(self._markers.topic, self._writer.encode(), marker.to_bytes())
            self._reached("marker sent")
            self._outlet.flush(self.timeout_ms / 1000)
            self._reached("flushed")
        except BaseException as error:
            self._give_up(error)  # no commit was asked for: nothing can be out
            raise

    def _commit(self) -> None:
        try:
            _persist(self._outlet.producer.commit_transaction, self.timeout_ms / 1000 + _CALL_S)
        except KafkaException as error:
            cause = error.args[0]
            if cause.txn_requires_abort():
                self._give_up(error)
                raise
            if _is_fenced(cause):
                raise self._taken_over() from error
            raise OutcomeUnknown(
                f"Whether {self._writer} has committed its batch is unknown ({cause.str()}); a restart finds out."
            ) from error

    def _give_up(self, error: BaseException) -> None:
        """Abort, as well as it goes: what is left open, the next life or the broker ends."""
        try:
            _persist(self._outlet.producer.abort_transaction, _ABORT_S_MAX)
        except KafkaException as refusal:
            if _is_fenced(refusal.args[0]):
                raise self._taken_over() from error
            log.warning("The transaction of %s could not be aborted: %s", self._writer, refusal.args[0].str())

    def _taken_over(self) -> TakenOver:
        return TakenOver(f"Another run of {self._writer} has taken over: this one publishes nothing any more.")


def _is_fenced(error: Any) -> bool:
    return error.code() in _FENCED or (error.fatal() and "fenced" in error.str().lower())


def _persist(call: Callable[[float], Any], seconds_max: float) -> None:
    """Call again as long as the error may pass."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            call(min(_CALL_S, max(deadline - time.monotonic(), 1.0)))
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


class Publishers:
    """Publishers that may be used again: the process that commits stays over many batches, and over queries."""

    KEPT_MAX: Final = 8

    def __init__(self, reached: Reached = nothing) -> None:
        self._kept: dict[tuple[str, str, str], Publisher] = {}
        self._reached = reached

    def commit(self, options: SinkOptions, identity: Identity, parts: Sequence[StagedPart]) -> bool:
        """Publish a batch once, however often it is committed. Says whether it was published now."""
        rows = sum(part.rows for part in parts)
        if not rows:
            return False
        settings = repr((sorted(options.kafka.librdkafka.items()), options.dead_letter_topic))
        key = (settings, options.commit_topic, identity.writer)
        publisher = self._kept.pop(key, None)
        if publisher is None or publisher.timeout_ms < wanted_timeout_ms(options, rows):
            publisher = Publisher(options, identity, rows, self._reached)
            publisher.open()
            sweep(options.staging, identity.writer, identity.batch - 1)
        is_new = publisher.publish(Marker(identity.batch, rows, options.topic), parts)
        if identity.is_lasting:
            self._keep(key, publisher)  # only after a success: any failure begins anew
        sweep(options.staging, identity.writer, identity.batch)
        self._reached("swept")
        return is_new

    def _keep(self, key: tuple[str, str, str], publisher: Publisher) -> None:
        self._kept[key] = publisher
        while len(self._kept) > self.KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
