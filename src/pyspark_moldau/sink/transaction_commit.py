"""The commit protocol: a batch and its commit marker are published in one transaction.

    init_transactions   fence other instances of this writer and abort their open transaction
    read the marker     only now: no other instance can change it any more
    marker = batch      already committed: a replay, nothing to do
    marker > batch      the checkpoint is older than the sink: rejected
    begin, produce all parts in the order of their tasks, produce the marker, commit

A failure before `commit` aborts the transaction; one in `commit` aborts only if the error is definite. An unknown
outcome is raised; the next instance resolves it by reading the marker. `on_step` is called at each fail point.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from pyspark_moldau.options.sink_options import BatchIdentity, SinkOptions
from pyspark_moldau.sink.commit_markers import CommitMarker, CommitMarkers
from pyspark_moldau.sink.sender import CommitRejected, ProducerFenced, TransactionalSender
from pyspark_moldau.sink.staged_batches import StagedBatches, remove_batches, remove_writer

log = logging.getLogger("pyspark_moldau")

OnStep: TypeAlias = Callable[[str], None]

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

# Longer idle writers reinitialise, because transactional ids expire (transactional.id.expiration.ms, a week).
_IDLE_S_MAX: Final = 3600.0
_CALL_S: Final = 30.0
_ABORT_S_MAX: Final = 60.0
_TIMEOUT_MS_MIN: Final = 60_000
_TIMEOUT_MS_MAX: Final = 900_000
_ROWS_PER_MS: Final = 10
_BYTES_PER_MS: Final = 20_000
_TIMEOUT_SETTING: Final = "transaction.timeout.ms"
_SHARED_WRITER_HINT: Final = (
    "If that is another thread of the same driver, run writes with one txnAppId to one topic in sequence, or "
    "use a separate txnAppId for each."
)


class StaleCheckpoint(RuntimeError):
    """The sink has committed a later batch than this one."""


class WriterFenced(RuntimeError):
    """Another instance of this writer has started and fenced this one."""


class TransactionTimedOut(RuntimeError):
    """The transaction exceeded its timeout."""


class CommitOutcomeUnknown(RuntimeError):
    """The transaction may or may not be committed; the next start reads the marker to find out."""


def ignore_step(place: str) -> None:
    """Ignore a fail point."""


def transaction_timeout_ms(options: SinkOptions, rows: int, size_bytes: int) -> int:
    """Return the transaction timeout for a batch size, unless the user has set one."""
    needed = max(rows // _ROWS_PER_MS, size_bytes // _BYTES_PER_MS)
    return options.kafka.number(_TIMEOUT_SETTING, min(max(_TIMEOUT_MS_MIN, needed), _TIMEOUT_MS_MAX))


class BatchCommitter:
    """A writer's transactional producer and its last commit marker."""

    def __init__(
        self,
        options: SinkOptions,
        identity: BatchIdentity,
        timeout_ms: int,
        on_step: OnStep = ignore_step,
        before: "BatchCommitter | None" = None,
    ) -> None:
        self._writer, self.run, self._on_step = identity.writer, identity.run, on_step
        self._is_user_versioned = identity.is_user_versioned
        self.timeout_ms, self.last_batch = timeout_ms, identity.batch
        self._markers = CommitMarkers(options.kafka, options.commit_topic) if identity.is_durable else None
        self._sender = create_sender(options, f"moldau-spark-{self._writer}", self.timeout_ms)
        self._marker: CommitMarker | None = None
        self._before = before
        self._begun_s = self._used_s = 0.0
        self.is_open = False

    def open(self) -> None:
        """Fence other instances, then read the writer's marker."""
        if self._markers is not None:
            self._markers.prepare()
        self._on_step("started")
        try:
            self._sender.initialise()
        except Exception as error:
            said = f"{error} (kafka.transaction.timeout.ms is {self.timeout_ms})"
            raise RuntimeError(f"The sink cannot begin its transactions: {said}") from error
        self._on_step("initialised")
        if self._markers is not None:
            self._marker = self._markers.newest(self._writer)
        before, self._before = self._before, None
        if before is not None and not self._is_unchanged_since(before):
            raise self._writer_fenced()
        self.is_open, self._used_s = True, time.monotonic()
        self._on_step("marker read")

    def can_continue_with(self, identity: BatchIdentity) -> bool:
        """Whether this process can commit the batch without reinitialising.

        Spark gives the commits of a query to any idle Python process. A gap since the last batch means that another
        process committed those in between and fenced this one. Another run would not leave a gap. (User versions may
        repeat in another process: there the marker shows which process fenced this one.)
        """
        if identity.run is None:
            return True
        return identity.run == self.run and identity.batch - self.last_batch in (0, 1)

    @property
    def is_idle(self) -> bool:
        """Whether it has been idle for so long that its transactional id may have expired."""
        return time.monotonic() - self._used_s > _IDLE_S_MAX

    def _is_unchanged_since(self, before: "BatchCommitter") -> bool:
        """Whether only processes of the same driver have published since."""
        if self._marker is None or self._marker == before._marker:
            return True
        return self.run is not None and self._marker.run == self.run

    def publish(self, marker: CommitMarker, parts: Sequence[StagedBatches]) -> bool:
        """Publish a batch unless it is already committed; return whether it was published."""
        if self._marker is not None and self._marker.batch == marker.batch:
            log.info("Batch %d of %s is already committed, skipping the replay.", marker.batch, self._writer)
            return False
        if self._marker is not None and self._marker.batch > marker.batch:
            if self._is_user_versioned:
                raise StaleCheckpoint(
                    f"Cannot write txnVersion {marker.batch} of {self._writer}: the sink has committed txnVersion "
                    f"{self._marker.batch}, and versions must not decrease. A repeated version writes nothing."
                )
            raise StaleCheckpoint(
                f"Cannot write batch {marker.batch} of {self._writer}: the sink has committed batch "
                f"{self._marker.batch}, so this checkpoint is older than the sink. "
                "Resume from the newer checkpoint; an empty one starts a new query, which writes all rows again."
            )
        self._send(marker, parts)
        self._commit()
        self._marker, self._used_s = marker, time.monotonic()
        self._on_step("committed")
        return True

    def _send(self, marker: CommitMarker, parts: Sequence[StagedBatches]) -> None:
        try:
            self._begun_s = time.monotonic()
            self._sender.begin()
            self._on_step("begun")
            for part in sorted(parts, key=lambda part: part.task):
                self._sender.produce(part.batches(), lambda: self._on_step("publishing"))
            self._on_step("published")
            if self._markers is not None:
                self._sender.send(self._markers.topic, self._writer.encode(), marker.to_bytes())
            self._on_step("marker sent")
            self._sender.flush(self.timeout_ms / 1000)
            self._on_step("flushed")
        except BaseException as error:
            self._abort(error)  # no commit was requested: nothing can be visible
            if isinstance(error, ProducerFenced):
                raise self._fenced_error() from error
            raise

    def _commit(self) -> None:
        try:
            self._sender.commit(self.timeout_ms / 1000 + _CALL_S)
        except CommitRejected as error:
            self._abort(error)
            if self._is_overdue():  # what the cluster has ended cannot be committed
                raise self._fenced_error() from error
            raise
        except ProducerFenced as error:
            raise self._fenced_error() from error
        except Exception as error:
            raise CommitOutcomeUnknown(
                f"Unknown whether {self._writer} has committed its batch ({error}); restart the query to resolve it."
            ) from error

    def _abort(self, error: BaseException) -> None:
        """Try to abort; otherwise the next instance or the coordinator's timeout aborts the transaction."""
        try:
            self._sender.abort(_ABORT_S_MAX)
        except ProducerFenced:
            raise self._fenced_error() from error
        except Exception as failure:
            log.warning("Cannot abort the transaction of %s, it will time out: %s", self._writer, failure)

    def close(self) -> None:
        self._sender.close()

    def _open_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _is_overdue(self) -> bool:
        return self._open_s() * 1000 >= self.timeout_ms

    def _fenced_error(self) -> WriterFenced | TransactionTimedOut:
        """Tell fencing by another run from a transaction timeout, which brokers report with the same error."""
        if self._is_overdue():
            return TransactionTimedOut(
                f"The transaction of {self._writer} timed out: it was open for {self._open_s():.0f} s, and "
                f"kafka.transaction.timeout.ms is {self.timeout_ms}. Increase it, or write smaller batches."
            )
        return self._writer_fenced()

    def _writer_fenced(self) -> WriterFenced:
        said = f"Another run of {self._writer} has fenced this one, which cannot publish any more."
        return WriterFenced(f"{said} {_SHARED_WRITER_HINT}" if self._is_user_versioned else said)


def create_sender(options: SinkOptions, transactional_id: str, timeout_ms: int) -> TransactionalSender:
    """Create a sender: Moldau's client for encoded batches, librdkafka for other SASL mechanisms."""
    if options.is_raw:
        from pyspark_moldau.sink.raw_sender import RawSender

        return RawSender(options, transactional_id, timeout_ms)
    from pyspark_moldau.sink.librdkafka_sender import LibrdkafkaSender

    return LibrdkafkaSender(options, {"transactional.id": transactional_id, _TIMEOUT_SETTING: str(timeout_ms)})


class BatchCommitters:
    """Reusable committers: the committing process outlives batches and queries."""

    KEPT_MAX: Final = 8

    def __init__(self, on_step: OnStep = ignore_step) -> None:
        self._kept: dict[tuple[str, str, str], BatchCommitter] = {}
        self._on_step = on_step

    def commit(self, options: SinkOptions, identity: BatchIdentity, parts: Sequence[StagedBatches]) -> bool:
        """Publish a batch idempotently; return whether it was published by this call."""
        rows = sum(part.rows for part in parts)
        timeout_ms = transaction_timeout_ms(options, rows, sum(part.size_bytes for part in parts))
        settings = repr((sorted(options.kafka.librdkafka.items()), options.dead_letter_topic, options.is_raw))
        key = (settings, options.commit_topic, identity.writer)
        before = self._kept.pop(key, None)
        if not rows:
            if before is not None:
                self._keep_or_close(key, before, identity)
            return False
        committer, is_new = self._publish_with_either(before, options, identity, timeout_ms, parts)
        if identity.is_durable:
            self._keep(key, committer, identity)
        else:
            committer.close()
        remove_batches(options.staging, identity.writer, identity.batch)
        if not identity.is_durable:
            remove_writer(options.staging, identity.writer)
        self._on_step("swept")
        return is_new

    def close(self) -> None:
        """Close all cached committers."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _publish_with_either(
        self,
        before: BatchCommitter | None,
        options: SinkOptions,
        identity: BatchIdentity,
        timeout_ms: int,
        parts: Sequence[StagedBatches],
    ) -> tuple[BatchCommitter, bool]:
        """Publish with the cached committer if it can continue, else with a new one.

        With user versions, another process of the driver may have repeated a version and fenced the cached one.
        """
        is_idle = before is not None and before.is_idle
        if (
            before is not None
            and before.can_continue_with(identity)
            and before.timeout_ms >= timeout_ms
            and not is_idle
        ):
            try:
                return before, self._publish(before, options, identity, parts)
            except WriterFenced:
                if not identity.is_user_versioned:  # a run's batches come once each, so this was another run
                    raise
        elif before is not None:
            before.close()
        is_of_same = before is not None and (identity.is_user_versioned or is_idle) and before.run == identity.run
        committer = BatchCommitter(options, identity, timeout_ms, self._on_step, before if is_of_same else None)
        return committer, self._publish(committer, options, identity, parts)

    def _publish(
        self, committer: BatchCommitter, options: SinkOptions, identity: BatchIdentity, parts: Sequence[StagedBatches]
    ) -> bool:
        try:
            if not committer.is_open:
                committer.open()
                remove_batches(options.staging, identity.writer, identity.batch - 1)
            rows = sum(part.rows for part in parts)
            return committer.publish(CommitMarker(identity.batch, rows, options.topic, identity.run), parts)
        except BaseException:
            committer.close()  # reinitialise after any failure
            raise

    def _keep_or_close(self, key: tuple[str, str, str], committer: BatchCommitter, identity: BatchIdentity) -> None:
        if committer.can_continue_with(identity):
            self._keep(key, committer, identity)
        else:
            committer.close()

    def _keep(self, key: tuple[str, str, str], committer: BatchCommitter, identity: BatchIdentity) -> None:
        committer.last_batch = identity.batch
        self._kept[key] = committer
        while len(self._kept) > self.KEPT_MAX:
            self._kept.pop(next(iter(self._kept))).close()
