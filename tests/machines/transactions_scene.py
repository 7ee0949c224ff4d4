"""A shard of transactional ids: decisions are applied, and requested markers are kept."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from moldau.machines.decision import REQUESTER, Decision, Now, SetTimer
from moldau.machines.transactions import (
    VALUE_VERSION,
    ProducerIdentity,
    ProducerIdNeeded,
    Record,
    SendMarkers,
    Transaction,
    TransactionSettings,
    TransactionsMachine,
    TransactionState,
)
from moldau.machines.transactions.state import record_of
from moldau.model.errors import KafkaError
from moldau.model.ids import ProducerId, TopicPartition
from moldau.wire.data_records import decode_transaction_record, encode_coordinator_key, encode_versioned

Response = TypeVar("Response")

NAME = "orders"
TIMEOUT_MS = 60_000
WALL_AHEAD_MS = 1_700_000_000_000
ONE, TWO, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
V1, V2 = 1, 2


def stored(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    return encode_coordinator_key(key), None if value is None else encode_versioned(value, VALUE_VERSION)


def replayed(log: Sequence[tuple[bytes, bytes | None]], settings: TransactionSettings) -> TransactionsMachine:
    """Return a machine rebuilt from the log alone."""
    machine = TransactionsMachine(settings, wall_offset_ms=WALL_AHEAD_MS, coordinator_epoch=lambda: 5)
    for offset, (key, value) in enumerate(log):
        machine.apply(decode_transaction_record(key, value), offset)
    return machine


class Scene:
    """Requests get a response at once, as if every record were committed when it is written."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.now_ms = 1_000.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.markers: list[SendMarkers] = []  # to be written
        self.timers: dict[Hashable, float] = {}
        self.last_producer_id = 0
        self.fail_over()

    @property
    def now(self) -> Now:
        return Now(self.now_ms, round(self.now_ms) + WALL_AHEAD_MS)

    def transaction(self, name: str = NAME) -> Transaction:
        return self.machine.state.transactions[name]

    def state(self) -> TransactionState:
        return self.transaction().state

    def accept(self, decision: Decision[Record, Response]) -> Response:
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(stored(record))
        for timer in decision.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.event] = self.now_ms + timer.delay_ms
        for effect in decision.effects:
            assert isinstance(effect, SendMarkers)
            self.markers.append(effect)
        response: Any = decision.responses.get(REQUESTER)
        if isinstance(response, KafkaError):
            raise response
        return response  # type: ignore[no-any-return]

    def put(self, transaction: Transaction, name: str = NAME) -> ProducerIdentity:
        """Put a transactional id into a state."""
        record = record_of(name, transaction)
        self.machine.apply(record, len(self.log))
        self.log.append(stored(record))
        return transaction.identity

    def fail_over(self) -> None:
        """Let another node take over with only the log."""
        self.markers, self.timers = [], {}
        self.machine = replayed(self.log, self.settings)
        self.accept(self.machine.decide_elected(self.now_ms))

    # Requests

    def with_id(self, decide: Callable[[ProducerId | None], Decision[Record, Response]]) -> Response:
        """Decide without a new producer id, and again with one if it is needed."""
        try:
            return self.accept(decide(None))
        except ProducerIdNeeded:
            self.last_producer_id += 1
            return self.accept(decide(ProducerId(self.last_producer_id)))

    def init(
        self, expected: ProducerIdentity | None = None, *, name: str = NAME, timeout_ms: int = TIMEOUT_MS
    ) -> ProducerIdentity:
        return self.with_id(
            lambda fresh: self.machine.decide_init_producer_id(
                name, timeout_ms, expected=expected, new_producer_id=fresh, now=self.now
            )
        )

    def add(self, producer: ProducerIdentity, *partitions: TopicPartition, version: int = V2, name: str = NAME) -> None:
        self.accept(
            self.machine.decide_add_partitions(name, producer, partitions, client_version=version, now=self.now)
        )

    def end(
        self, producer: ProducerIdentity, *, is_commit: bool, version: int = V2, name: str = NAME
    ) -> ProducerIdentity:
        return self.with_id(
            lambda fresh: self.machine.decide_end(
                name, producer, is_commit=is_commit, client_version=version, new_producer_id=fresh, now=self.now
            )
        )

    def commit(self, producer: ProducerIdentity, *, version: int = V2) -> ProducerIdentity:
        return self.end(producer, is_commit=True, version=version)

    def abort(self, producer: ProducerIdentity, *, version: int = V2) -> ProducerIdentity:
        return self.end(producer, is_commit=False, version=version)

    def written(self, markers: SendMarkers, *partitions: TopicPartition) -> None:
        self.accept(self.machine.decide_markers_written(markers, partitions, now=self.now))

    def write_markers(self) -> None:
        """Deliver all markers."""
        markers, self.markers = self.markers, []
        for each in markers:
            self.written(each, *each.partitions)

    def done(self, *, is_commit: bool = True, version: int = V2, producer: ProducerIdentity) -> ProducerIdentity:
        """Complete one transaction; return the producer's identity after it."""
        self.add(producer, ONE, version=version)
        after = self.end(producer, is_commit=is_commit, version=version)
        self.write_markers()
        return after

    # Time

    def pass_time(self, ms: float) -> None:
        until_ms = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= until_ms:
            event = min(self.timers, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(event))
            self.accept(self.machine.decide_timed_out(event, self.now_ms))
        self.now_ms = until_ms
