"""A transactional id with its environment: producers that restart, late and duplicate frames, partitions that apply
markers, and a coordinator that fails over with its committed state."""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from transactions_scene import NAME, ONE, OTHER, TIMEOUT_MS, TWO, V1, V2, WALL_AHEAD_MS, stored

from moldau.machines.decision import REQUESTER, Decision, Now, SetTimer
from moldau.machines.transactions import (
    ProducerIdentity,
    ProducerIdNeeded,
    Record,
    SendMarkers,
    Transaction,
    TransactionSettings,
    TransactionsMachine,
    TransactionState,
)
from moldau.machines.transactions.state import PREPARED, record_of
from moldau.model.errors import ConcurrentTransactions, KafkaError
from moldau.model.ids import ProducerId, TopicPartition
from moldau.wire.data_records import decode_transaction_record

Decide = Callable[[TransactionsMachine, ProducerId | None, Now], Decision[Record, Any]]
OnResponse = Callable[[Any], None]
Stored = tuple[bytes, bytes | None]

FIRST_PRODUCER_ID = 100


class Coordinator:
    """The machine on its log: responses and effects are released once their records are committed."""

    def __init__(self, send_markers: Callable[[SendMarkers], None]) -> None:
        self.send_markers = send_markers
        self.now_ms = 1_000.0
        self.log: list[Stored] = []
        self.committed = 0
        self.epoch = 0
        self.producer_ids = FIRST_PRODUCER_ID
        self.held: deque[tuple[int, OnResponse | None, Any, tuple[object, ...]]] = deque()
        self.timers: dict[Hashable, float] = {}
        self.elect()

    @property
    def now(self) -> Now:
        return Now(self.now_ms, round(self.now_ms) + WALL_AHEAD_MS)

    def elect(self) -> None:
        self.machine = TransactionsMachine(
            TransactionSettings(), wall_offset_ms=WALL_AHEAD_MS, coordinator_epoch=lambda: self.epoch
        )
        for offset, each in enumerate(self.log):
            self.machine.apply(decode_transaction_record(*each), offset)
        self.committed = len(self.log)
        self.accept(self.machine.decide_elected(self.now_ms))

    def fail_over(self, kept: int) -> None:
        """Let another node take over with the committed part of the log, and perhaps more; the rest is lost."""
        del self.log[self.committed + kept :]
        self.held.clear()
        self.timers.clear()
        self.epoch += 1
        self.elect()

    def ask(self, decide: Decide, on_response: OnResponse | None = None) -> None:
        try:
            decision = decide(self.machine, None, self.now)
        except ProducerIdNeeded:
            self.producer_ids += 1
            decision = decide(self.machine, ProducerId(self.producer_ids), self.now)
        except KafkaError as error:
            decision = Decision(responses={REQUESTER: error})
        self.accept(decision, on_response)

    def accept(self, decision: Decision[Record, Any], on_response: OnResponse | None = None) -> None:
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(stored(record))
        for effect in decision.effects:
            assert isinstance(effect, SendMarkers)
            self.check_decided(effect)
        for timer in decision.timers:
            assert isinstance(timer, SetTimer)
            self.timers[timer.event] = self.now_ms + timer.delay_ms
        self.held.append((len(self.log), on_response, decision.responses.get(REQUESTER), tuple(decision.effects)))
        self.release()

    def check_decided(self, effect: SendMarkers) -> None:
        """Check that sent markers are those of the log, and not sent before they are logged."""
        transaction = self.machine.state.transactions[effect.transactional_id]
        assert transaction.state in PREPARED
        assert (transaction.state is TransactionState.PREPARE_COMMIT) is effect.is_commit
        assert (transaction.producer_id, transaction.epoch) == (effect.producer_id, effect.epoch)
        assert tuple(transaction.partitions) == effect.partitions

    def commit(self, count: int) -> None:
        self.committed = min(self.committed + count, len(self.log))
        self.release()

    def release(self) -> None:
        while self.held and self.held[0][0] <= self.committed:
            _, on_response, response, effects = self.held.popleft()
            for effect in effects:
                assert isinstance(effect, SendMarkers)
                self.send_markers(effect)
            if on_response is not None:
                on_response(response)

    def pass_time(self, ms: float) -> None:
        until_ms = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= until_ms:
            event = min(self.timers, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(event))
            self.accept(self.machine.decide_timed_out(event, self.now_ms))
        self.now_ms = until_ms


@dataclass
class Written:
    """The state of one producer id in one partition."""

    epoch: int = -1
    open: list[int] = field(default_factory=list)  # the transactions of its records


class Partition:
    """Accepts records of current epochs, and settles all open transactions at a marker."""

    def __init__(self) -> None:
        self.producers: dict[int, Written] = {}
        self.outcomes: dict[int, bool] = {}
        self.coordinator_epoch = -1

    def append(self, producer: ProducerIdentity, transaction: int) -> bool:
        written = self.producers.setdefault(producer.producer_id, Written())
        if producer.epoch < written.epoch:
            return False
        if producer.epoch > written.epoch:
            assert not written.open, "a transaction began where the one before is not settled"
        assert all(each == transaction for each in written.open), "records joined a transaction of others"
        written.epoch = producer.epoch
        written.open.append(transaction)
        return True

    def mark(self, markers: SendMarkers) -> bool:
        """Return whether the marker is applied, now or before."""
        written = self.producers.setdefault(markers.producer_id, Written())
        least = written.epoch + 1 if markers.transaction_version >= V2 else written.epoch
        if markers.coordinator_epoch < self.coordinator_epoch:
            return False
        if markers.epoch < least:
            return markers.epoch == written.epoch and not written.open
        self.coordinator_epoch = markers.coordinator_epoch
        written.epoch = markers.epoch
        for transaction in written.open:
            assert self.outcomes.setdefault(transaction, markers.is_commit) is markers.is_commit, "two outcomes"
        written.open.clear()
        return True


@dataclass
class Producer:
    """One run of a client: its identity, its transaction, and its pending request."""

    number: int
    version: int
    identity: ProducerIdentity | None = None
    transaction: int | None = None
    unacknowledged: int = 0
    has_failed: bool = False  # a write of this transaction failed: it can only be aborted
    request: Callable[[], None] | None = None  # retried until there is a response
    is_dead: bool = False


class World:
    """Everything that can happen, one event at a time."""

    def __init__(self, random: Random, *, epoch: int | None = None) -> None:
        self.random = random
        self.partitions = {name: Partition() for name in (ONE, TWO, OTHER)}
        self.network: list[Callable[[], None]] = []
        self.outstanding: list[tuple[SendMarkers, TopicPartition]] = []
        self.coordinator = Coordinator(self.markers_sent)
        if epoch is not None:
            self.begin_at(epoch)
        self.runs = 0
        self.transactions = 0
        self.owners: dict[ProducerIdentity, int] = {}
        self.acknowledged: dict[int, set[TopicPartition]] = {}
        self.requested: dict[int, bool] = {}  # the outcome that its producer requested
        self.outcomes: dict[int, bool] = {}  # the outcome that its producer got
        self.producers = [self.new_producer() for _ in range(2)]

    def begin_at(self, epoch: int) -> None:
        before = Transaction(ProducerId(1), epoch, TIMEOUT_MS, last_update_ms=WALL_AHEAD_MS)
        self.coordinator.log.append(stored(record_of(NAME, before)))
        self.coordinator.elect()

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is in flight."""
        return not (self.network or self.outstanding or self.coordinator.held)

    # Markers

    def markers_sent(self, markers: SendMarkers) -> None:
        self.outstanding += [(markers, partition) for partition in markers.partitions]

    def deliver_marker(self, *, again: bool = False) -> None:
        if not self.outstanding:
            return
        index = self.random.randrange(len(self.outstanding))
        markers, partition = self.outstanding[index]
        if markers.transaction_version < V2 or not again:
            del self.outstanding[index]
        if not self.partitions[partition].mark(markers):
            return

        def report() -> None:
            self.coordinator.ask(lambda machine, _, now: machine.decide_markers_written(markers, [partition], now=now))

        self.network.append(report)

    # The network

    def send(self, frame: Callable[[], None], version: int) -> None:
        """Send a frame; version 1 frames keep their order, those of version 2 may come at any time."""
        if version < V2:
            frame()
        else:
            self.network.append(frame)

    def deliver(self, *, again: bool = False) -> None:
        if self.network:
            index = min(self.random.randrange(len(self.network)) for _ in range(3))  # mostly not very late
            frame = self.network[index] if again else self.network.pop(index)
            frame()

    # Producers

    def new_producer(self, version: int = V2) -> Producer:
        self.runs += 1
        producer = Producer(self.runs, version)
        self.ask_init(producer, None)
        return producer

    def ask_init(self, producer: Producer, expected: ProducerIdentity | None) -> None:
        def request() -> None:
            def on_response(response: Any) -> None:
                if producer.request is request and not self.is_rejected(producer, response):
                    self.becomes(producer, response)

            self.coordinator.ask(
                lambda machine, fresh, now: machine.decide_init_producer_id(
                    NAME, TIMEOUT_MS, expected=expected, new_producer_id=fresh, now=now
                ),
                on_response,
            )

        producer.request = request
        self.send(request, producer.version)

    def is_rejected(self, producer: Producer, response: Any) -> bool:
        """Return whether this run has ended; a concurrent transaction is retried."""
        if isinstance(response, KafkaError) and not isinstance(response, ConcurrentTransactions):
            producer.is_dead = True
        return isinstance(response, KafkaError)

    def becomes(self, producer: Producer, identity: ProducerIdentity) -> None:
        owner = self.owners.setdefault(identity, producer.number)
        assert owner == producer.number, "two producers are the same to partitions"
        producer.identity, producer.request = identity, None
        producer.transaction, producer.unacknowledged, producer.has_failed = None, 0, False

    def write(self, producer: Producer, partition: TopicPartition) -> None:
        if producer.identity is None or producer.request is not None or producer.has_failed:
            return
        if producer.transaction is None:
            self.transactions += 1
            producer.transaction = self.transactions
        producer.unacknowledged += 1
        self.send(self.enrolment(producer, producer.identity, producer.transaction, partition), producer.version)

    def enrolment(
        self, producer: Producer, identity: ProducerIdentity, transaction: int, partition: TopicPartition
    ) -> Callable[[], None]:
        """Join the transaction at the coordinator, and append the batch once that is committed."""
        acknowledged: list[bool] = []

        def acknowledge(is_written: bool) -> None:
            if producer.transaction != transaction or acknowledged:
                return
            acknowledged.append(is_written)
            producer.unacknowledged -= 1
            producer.has_failed |= not is_written
            if is_written:
                self.acknowledged.setdefault(transaction, set()).add(partition)

        def append() -> None:
            acknowledge(self.partitions[partition].append(identity, transaction))

        def on_response(response: Any) -> None:
            if isinstance(response, ConcurrentTransactions) and producer.version >= V2:
                self.send(join, producer.version)
            elif isinstance(response, KafkaError):
                acknowledge(False)
            else:
                self.send(append, producer.version)

        def join() -> None:
            self.coordinator.ask(
                lambda machine, _, now: machine.decide_add_partitions(
                    NAME, identity, [partition], client_version=producer.version, now=now
                ),
                on_response,
            )

        return join

    def end(self, producer: Producer, *, is_commit: bool) -> None:
        if producer.identity is None or producer.request is not None:
            return
        is_ready = producer.transaction is not None and not producer.unacknowledged and not producer.has_failed
        if (is_commit or producer.version < V2) and not is_ready:
            return
        self.ask_end(producer, producer.identity, producer.transaction, is_commit)

    def ask_end(self, producer: Producer, identity: ProducerIdentity, transaction: int | None, is_commit: bool) -> None:
        if transaction is not None:
            self.requested[transaction] = is_commit

        def request() -> None:
            def on_response(response: Any) -> None:
                if producer.request is not request or self.is_rejected(producer, response):
                    return
                if transaction is not None:
                    self.outcomes[transaction] = is_commit
                self.becomes(producer, response)

            self.coordinator.ask(
                lambda machine, fresh, now: machine.decide_end(
                    NAME,
                    identity,
                    is_commit=is_commit,
                    client_version=producer.version,
                    new_producer_id=fresh,
                    now=now,
                ),
                on_response,
            )

        producer.request = request
        self.send(request, producer.version)

    def go_on(self, producer: Producer) -> None:
        """Abandon the transaction after an error, and take another epoch."""
        if producer.identity is not None and producer.request is None:
            self.ask_init(producer, producer.identity)

    def restart(self, index: int) -> None:
        self.producers[index] = self.new_producer(self.random.choice([V1, V2, V2]))
