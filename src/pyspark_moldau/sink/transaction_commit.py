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
from typing import Final, TypeAlias

from pyspark_moldau.options.sink_options import Identity, SinkOptions
from pyspark_moldau.sink.commit_markers import Marker, Markers
from pyspark_moldau.sink.sender import CommitRefused, Outlet, ShutOut
from pyspark_moldau.sink.staged_batches import StagedPart, forget, sweep

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

# Quiet for longer, a writer begins anew: clusters forget transactional ids (transactional.id.expiration.ms, a week).
_QUIET_S_MAX: Final = 3600.0
_CALL_S: Final = 30.0
_ABORT_S_MAX: Final = 60.0
_TIMEOUT_MS_MIN: Final = 60_000
_TIMEOUT_MS_MAX: Final = 900_000
_ROWS_PER_MS: Final = 10
_BYTES_PER_MS: Final = 20_000
_TIMEOUT_SETTING: Final = "transaction.timeout.ms"
_BY_HAND: Final = (
    "If that is another thread of the same driver, let writes with one txnAppId to one topic follow on each other, or "
    "give each a txnAppId of its own."
)


class CheckpointTooOld(RuntimeError):
    """The sink has batches that the checkpoint does not know of."""


class TakenOver(RuntimeError):
    """Another life of this writer has begun: this one has nothing to say any more."""


class RanOutOfTime(RuntimeError):
    """The transaction stood open for longer than it may: whoever it was that ended it, it came too late."""


class OutcomeUnknown(RuntimeError):
    """The transaction may be committed or not. The next start finds out."""


def nothing(place: str) -> None:
    """Nobody listens."""


def wanted_timeout_ms(options: SinkOptions, rows: int, size_bytes: int) -> int:
    """How long a transaction of so many rows and bytes may stand open, unless the user has said it."""
    needed = max(rows // _ROWS_PER_MS, size_bytes // _BYTES_PER_MS)
    return options.kafka.number(_TIMEOUT_SETTING, min(max(_TIMEOUT_MS_MIN, needed), _TIMEOUT_MS_MAX))


class Publisher:
    """One writer's hold on its output: a transactional producer, and the marker of what it last committed."""

    def __init__(
        self,
        options: SinkOptions,
        identity: Identity,
        timeout_ms: int,
        reached: Reached = nothing,
        before: "Publisher | None" = None,
    ) -> None:
        self._writer, self.run, self._reached = identity.writer, identity.run, reached
        self._is_by_hand = identity.is_by_hand
        self.timeout_ms, self.last_batch = timeout_ms, identity.batch
        self._markers = Markers(options.kafka, options.commit_topic) if identity.is_lasting else None
        self._outlet = outlet_for(options, f"moldau-spark-{self._writer}", self.timeout_ms)
        self._marker: Marker | None = None
        self._before = before
        self._begun_s = self._used_s = 0.0
        self.is_open = False

    def open(self) -> None:
        """Shut out all others, then see how far the writer has come."""
        if self._markers is not None:
            self._markers.prepare()
        self._reached("started")
        try:
            self._outlet.initialise()
        except Exception as error:
            said = f"{error} (kafka.transaction.timeout.ms is {self.timeout_ms})"
            raise RuntimeError(f"The sink cannot begin its transactions: {said}") from error
        self._reached("initialised")
        if self._markers is not None:
            self._marker = self._markers.newest(self._writer)
        before, self._before = self._before, None
        if before is not None and not self._is_left_as_by(before):
            raise self._taken_over()
        self.is_open, self._used_s = True, time.monotonic()
        self._reached("marker read")

    def goes_on_with(self, identity: Identity) -> bool:
        """Spark gives the commits of a query to whichever of its processes is free.

        If a batch does not follow on the last one here, another process has had those in between, and has shut this one
        out. That is no other run, which would have come between two batches that follow on each other. (By hand, a
        version may come again, and to another process: who has shut this one out is then seen by its marker.)
        """
        if identity.run is None:
            return True
        return identity.run == self.run and identity.batch - self.last_batch in (0, 1)

    @property
    def is_quiet(self) -> bool:
        """Whether it has published nothing for so long that the cluster may have forgotten it."""
        return time.monotonic() - self._used_s > _QUIET_S_MAX

    def _is_left_as_by(self, before: "Publisher") -> bool:
        """Whether nobody has published since, but processes of the same driver."""
        if self._marker is None or self._marker == before._marker:
            return True
        return self.run is not None and self._marker.run == self.run

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
        self._marker, self._used_s = marker, time.monotonic()
        self._reached("committed")
        return True

    def _send(self, marker: Marker, parts: Sequence[StagedPart]) -> None:
        try:
            self._begun_s = time.monotonic()
            self._outlet.begin()
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
            if isinstance(error, ShutOut):
                raise self._shut_out() from error
            raise

    def _commit(self) -> None:
        try:
            self._outlet.commit(self.timeout_ms / 1000 + _CALL_S)
        except CommitRefused as error:
            self._give_up(error)
            if self._is_overdue():  # what the cluster has ended cannot be committed
                raise self._shut_out() from error
            raise
        except ShutOut as error:
            raise self._shut_out() from error
        except Exception as error:
            raise OutcomeUnknown(
                f"Whether {self._writer} has committed its batch is unknown ({error}); a restart finds out."
            ) from error

    def _give_up(self, error: BaseException) -> None:
        """Abort, as well as it goes: what is left open, the next life or the broker ends."""
        try:
            self._outlet.abort(_ABORT_S_MAX)
        except ShutOut:
            raise self._shut_out() from error
        except Exception as refusal:
            log.warning("The transaction of %s could not be aborted: %s", self._writer, refusal)

    def close(self) -> None:
        self._outlet.close()

    def _open_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _is_overdue(self) -> bool:
        return self._open_s() * 1000 >= self.timeout_ms

    def _shut_out(self) -> TakenOver | RanOutOfTime:
        """By another run, or by the cluster: it ends what stands open for too long in the same way."""
        if self._is_overdue():
            return RanOutOfTime(
                f"The transaction of {self._writer} ran out of time: it was open for {self._open_s():.0f} s, and "
                f"kafka.transaction.timeout.ms is {self.timeout_ms}. Set it higher, or write less at once."
            )
        return self._taken_over()

    def _taken_over(self) -> TakenOver:
        said = f"Another run of {self._writer} has taken over: this one publishes nothing any more."
        return TakenOver(f"{said} {_BY_HAND}" if self._is_by_hand else said)


def outlet_for(options: SinkOptions, transactional_id: str, timeout_ms: int) -> Outlet:
    """Our own client sends what tasks have made ready; librdkafka where TLS or SASL are wanted."""
    if options.is_raw:
        from pyspark_moldau.sink.raw_sender import RawOutlet

        return RawOutlet(options, transactional_id, timeout_ms)
    from pyspark_moldau.sink.librdkafka_sender import LibrdkafkaOutlet

    return LibrdkafkaOutlet(options, {"transactional.id": transactional_id, _TIMEOUT_SETTING: str(timeout_ms)})


class Publishers:
    """Publishers that may be used again: the process that commits stays over many batches, and over queries."""

    KEPT_MAX: Final = 8

    def __init__(self, reached: Reached = nothing) -> None:
        self._kept: dict[tuple[str, str, str], Publisher] = {}
        self._reached = reached

    def commit(self, options: SinkOptions, identity: Identity, parts: Sequence[StagedPart]) -> bool:
        """Publish a batch once, however often it is committed. Says whether it was published now."""
        rows = sum(part.rows for part in parts)
        timeout_ms = wanted_timeout_ms(options, rows, sum(part.size_bytes for part in parts))
        settings = repr((sorted(options.kafka.librdkafka.items()), options.dead_letter_topic, options.is_raw))
        key = (settings, options.commit_topic, identity.writer)
        before = self._kept.pop(key, None)
        if not rows:
            if before is not None:
                self._keep_or_close(key, before, identity)
            return False
        publisher, is_new = self._published(before, options, identity, timeout_ms, parts)
        if identity.is_lasting:
            self._keep(key, publisher, identity)
        else:
            publisher.close()
        sweep(options.staging, identity.writer, identity.batch)
        if not identity.is_lasting:
            forget(options.staging, identity.writer)
        self._reached("swept")
        return is_new

    def close(self) -> None:
        """Let go of all that was kept."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _published(
        self,
        before: Publisher | None,
        options: SinkOptions,
        identity: Identity,
        timeout_ms: int,
        parts: Sequence[StagedPart],
    ) -> tuple[Publisher, bool]:
        """By the one that was kept, if it may be used for this batch, or by a new one.

        By hand, another process of the driver may have had the same version again, and may have shut this one out.
        """
        is_quiet = before is not None and before.is_quiet
        if before is not None and before.goes_on_with(identity) and before.timeout_ms >= timeout_ms and not is_quiet:
            try:
                return before, self._publish(before, options, identity, parts)
            except TakenOver:
                if not identity.is_by_hand:  # a run's batches come once each, so this was another run
                    raise
        elif before is not None:
            before.close()
        is_of_same = before is not None and (identity.is_by_hand or is_quiet) and before.run == identity.run
        publisher = Publisher(options, identity, timeout_ms, self._reached, before if is_of_same else None)
        return publisher, self._publish(publisher, options, identity, parts)

    def _publish(
        self, publisher: Publisher, options: SinkOptions, identity: Identity, parts: Sequence[StagedPart]
    ) -> bool:
        try:
            if not publisher.is_open:
                publisher.open()
                sweep(options.staging, identity.writer, identity.batch - 1)
            rows = sum(part.rows for part in parts)
            return publisher.publish(Marker(identity.batch, rows, options.topic, identity.run), parts)
        except BaseException:
            publisher.close()  # any failure begins anew
            raise

    def _keep_or_close(self, key: tuple[str, str, str], publisher: Publisher, identity: Identity) -> None:
        if publisher.goes_on_with(identity):
            self._keep(key, publisher, identity)
        else:
            publisher.close()

    def _keep(self, key: tuple[str, str, str], publisher: Publisher, identity: Identity) -> None:
        publisher.last_batch = identity.batch
        self._kept[key] = publisher
        while len(self._kept) > self.KEPT_MAX:
            self._kept.pop(next(iter(self._kept))).close()
