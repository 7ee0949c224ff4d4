"""A partition on a few brokers under all faults, and the invariants."""

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from replication_parts import AlterIsr, Controller, Entry, ModelLog, Response, State

from moldau.machines.replication import (
    EpochEnd,
    FollowerMachine,
    LeaderMachine,
    ProposeIsr,
    RestartAt,
    TruncateTo,
    find_divergence,
)
from moldau.model.errors import ErrorCode, KafkaError, OffsetOutOfRange
from moldau.model.ids import NO_NODE

MESSAGES_MAX = 12
LOOKED_BACK = 20  # how many of the newest committed entries are compared each time


class Fetch(NamedTuple):
    """A follower's request in flight."""

    sender: int
    broker_epoch: int
    leader: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Fetched(NamedTuple):
    """Its response."""

    fetch: Fetch
    entries: tuple[Entry, ...] = ()
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    ends: tuple[int, int] | None = None  # of the leader, if the fetch was out of range


class Decided(NamedTuple):
    """The controller's response in flight; none if the proposal or the response was lost."""

    receiver: int
    broker_epoch: int
    proposal: ProposeIsr
    response: Response | None


@dataclass
class Broker:
    """A node: its disk survives crashes, its machine does not."""

    id: int
    log: ModelLog = field(default_factory=ModelLog)
    high_watermark_checkpoint: int = 0
    is_up: bool = False
    is_clean: bool = True  # it will register after a clean shutdown
    broker_epoch: int = -1
    seen: int = 0  # the number of the controller's states it has seen
    machine: LeaderMachine | FollowerMachine | None = None
    high_watermark: int = 0

    @property
    def leader(self) -> LeaderMachine | None:
        return self.machine if isinstance(self.machine, LeaderMachine) else None

    @property
    def follower(self) -> FollowerMachine | None:
        return self.machine if isinstance(self.machine, FollowerMachine) else None


class Cluster:
    """Brokers, a controller and messages in flight. Each method is an event."""

    def __init__(
        self,
        random: Random,
        *,
        brokers: int = 3,
        replicas: int = 3,
        min_isr: int = 2,
        is_flushing: bool = False,
        is_unclean_allowed: bool = False,
    ) -> None:
        self.random = random
        self.is_flushing = is_flushing  # a replica counts only where it is synced
        self.brokers = {number: Broker(number) for number in range(1, brokers + 1)}
        self.controller = Controller(tuple(self.brokers)[:replicas], min_isr, is_unclean_allowed=is_unclean_allowed)
        self.now_ms = 0.0
        self.lag_max_ms = random.choice([20.0, 1_000.0])
        self.entries_per_fetch = random.choice([2, 5, 30])
        self.fetches: list[Fetch] = []
        self.responses: list[Fetched] = []
        self.proposals: list[AlterIsr] = []
        self.decisions: list[Decided] = []
        self.values = 0
        self.committed: dict[int, Entry] = {}
        self.committed_end = 0
        self.shown: dict[int, tuple[LeaderMachine, int]] = {}  # by each presumed leader
        self.led: dict[int, tuple[int, int]] = {}  # by leader epoch: the broker and its incarnation
        self.hurt: dict[int, int] = {}  # brokers not in sync since a power loss, with their broker epoch then
        self.truncations = self.restarts = self.rejections = 0
        for broker in self.brokers.values():
            self.start(broker)
            self.controller.unfence(broker.id)

    @property
    def state(self) -> State:
        return self.controller.state

    # ── Broker lifecycle ──

    def start(self, broker: Broker) -> None:
        broker.broker_epoch = self.controller.register(broker.id, is_clean=broker.is_clean)
        broker.is_up = broker.is_clean = True
        broker.high_watermark = min(
            max(broker.high_watermark_checkpoint, broker.log.start_offset), broker.log.end_offset
        )
        broker.seen = len(self.controller.history)
        self.take_place(broker, self.controller.state, None)

    def crash(self, broker: Broker) -> None:
        """End the process; written data stays. Its connections are reset, but sent messages may still arrive."""
        broker.is_up = False
        broker.machine = None
        self.responses = [each for each in self.responses if each.fetch.sender != broker.id]
        self.decisions = [each for each in self.decisions if each.receiver != broker.id]

    def lose_power(self, broker: Broker) -> None:
        self.crash(broker)
        broker.log.lose_power(self.random)
        broker.is_clean = False
        self.hurt[broker.id] = broker.broker_epoch

    def may_lose_power(self, broker: Broker) -> bool:
        others = [each for each in self.hurt if each != broker.id]
        return self.is_flushing or len(others) + 1 < self.controller.min_isr

    def learn(self, broker: Broker) -> None:
        """Deliver the next of the controller's states to a broker."""
        if broker.is_up and broker.seen < len(self.controller.history):
            before, after = self.controller.history[broker.seen - 1], self.controller.history[broker.seen]
            broker.seen += 1
            self.take_place(broker, after, before)

    def take_place(self, broker: Broker, state: State, before: State | None) -> None:
        if broker.machine is not None:
            broker.high_watermark = broker.machine.high_watermark
        if broker.id not in state.replicas:
            broker.machine = None
            if before is not None and broker.id in before.replicas:
                broker.log, broker.high_watermark, broker.high_watermark_checkpoint = ModelLog(), 0, 0
        elif before is None or broker.machine is None or state.leader_epoch != before.leader_epoch:
            broker.machine = self.lead(broker, state) if state.leader == broker.id else self.follow(broker, state)
        elif broker.leader is not None:
            proposal = broker.leader.image_changed(state.partition_epoch, state.replicas, state.isr, self.now_ms)
            self.send_proposal(broker, proposal)
            self.send_proposal(broker, broker.leader.ticked(self.now_ms))

    def lead(self, broker: Broker, state: State) -> LeaderMachine:
        life = (broker.id, broker.broker_epoch)
        assert self.led.setdefault(state.leader_epoch, life) == life, "two lead in one epoch"
        log = broker.log
        log.epochs.assign(state.leader_epoch, log.end_offset)
        return LeaderMachine(
            broker.id,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=state.replicas,
            isr=state.isr,
            end_offset=log.end_offset,
            durable_offset=self.durable_offset(log),
            high_watermark=broker.high_watermark,
            min_isr=self.controller.min_isr,
            lag_max_ms=self.lag_max_ms,
            broker_epoch_of=lambda each: self.controller.history[broker.seen - 1].eligible_epoch(each),
            now_ms=self.now_ms,
        )

    def follow(self, broker: Broker, state: State) -> FollowerMachine | None:
        if state.leader == NO_NODE:
            return None
        return FollowerMachine(
            broker.log,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            high_watermark=broker.high_watermark,
        )

    def durable_offset(self, log: ModelLog) -> int:
        return log.synced_offset if self.is_flushing else log.end_offset

    # ── Leader ──

    def produce(self, broker: Broker, count: int) -> None:
        leader = broker.leader
        if leader is None:
            return
        for _ in range(count):
            self.values += 1
            broker.log.append([Entry(leader.leader_epoch, self.values)])
        leader.appended(broker.log.end_offset, self.durable_offset(broker.log), self.now_ms)

    def sync(self, broker: Broker) -> None:
        broker.log.sync()
        if broker.leader is not None:
            broker.leader.appended(broker.log.end_offset, self.durable_offset(broker.log), self.now_ms)

    def tick(self, broker: Broker) -> None:
        if broker.leader is not None:
            self.send_proposal(broker, broker.leader.ticked(self.now_ms))

    def delete_records(self, broker: Broker) -> None:
        if broker.leader is not None:
            broker.log.advance_start(self.random.randint(broker.log.start_offset, broker.leader.high_watermark))

    def send_proposal(self, broker: Broker, proposal: ProposeIsr | None) -> None:
        if proposal is not None:
            self.proposals.append(AlterIsr(broker.id, broker.broker_epoch, proposal))

    def serve(self, fetch: Fetch) -> None:
        """Deliver a fetch to its leader."""
        broker = self.brokers[fetch.leader]
        leader = broker.leader
        if leader is None or leader.leader_epoch != fetch.leader_epoch:
            return
        log = broker.log
        try:
            diverging = find_divergence(log, fetch.last_fetched_epoch, fetch.offset)
            if not log.start_offset <= fetch.offset or (diverging is None and fetch.offset > log.end_offset):
                raise OffsetOutOfRange
            if diverging is not None:
                self.responses.append(Fetched(fetch, diverging=diverging))
                return
            proposal = leader.follower_fetched(
                fetch.sender, fetch.broker_epoch, fetch.offset, self.now_ms, fetch.log_start_offset
            )
        except OffsetOutOfRange:
            self.responses.append(Fetched(fetch, ends=(log.start_offset, log.end_offset)))
        except KafkaError:
            return
        else:
            self.send_proposal(broker, proposal)
            entries = tuple(log.read(fetch.offset, self.entries_per_fetch))
            self.responses.append(Fetched(fetch, entries, leader.high_watermark, log.start_offset))

    # ── Follower ──

    def fetch(self, broker: Broker) -> None:
        follower = broker.follower
        if follower is None:
            return
        if self.is_flushing:
            broker.log.sync()
        self.fetches.append(
            Fetch(
                broker.id,
                broker.broker_epoch,
                follower.leader,
                follower.leader_epoch,
                follower.fetch_offset,
                follower.last_fetched_epoch,
                broker.log.start_offset,
            )
        )

    def take(self, response: Fetched) -> None:
        """Deliver a response to its follower."""
        broker, fetch = self.brokers[response.fetch.sender], response.fetch
        follower = broker.follower
        if follower is None or not follower.expects(fetch.leader_epoch, fetch.offset, fetch.last_fetched_epoch):
            return
        if response.diverging is not None:
            self.cut(broker, follower.diverged(response.diverging))
        elif response.ends is not None:
            self.cut(broker, follower.offset_out_of_range(*response.ends))
        else:
            broker.log.append(response.entries)
            follower.fetched(response.high_watermark, response.log_start_offset)
            broker.log.advance_start(follower.log_start_offset)

    def cut(self, broker: Broker, cut: TruncateTo | RestartAt | None) -> None:
        if isinstance(cut, TruncateTo):
            self.truncations += cut.end_offset < broker.log.end_offset
            self.check_cut(broker, cut.end_offset)
            broker.log.truncate_to(cut.end_offset)
        elif isinstance(cut, RestartAt):
            self.restarts += 1
            broker.log.restart_at(cut.start_offset)

    # ── Controller ──

    def decide(self, request: AlterIsr) -> None:
        response = self.controller.alter(request)
        self.rejections += response.code is not ErrorCode.NONE
        self.decisions.append(Decided(request.sender, request.broker_epoch, request.proposal, response))

    def receive_decision(self, decided: Decided) -> None:
        broker = self.brokers[decided.receiver]
        leader = broker.leader
        if leader is None or broker.broker_epoch != decided.broker_epoch:
            return
        response = decided.response or Response(ErrorCode.REQUEST_TIMED_OUT)
        if response.code is ErrorCode.NONE:
            again = leader.isr_accepted(decided.proposal, response.partition_epoch, response.isr, self.now_ms)
        else:
            again = leader.isr_rejected(decided.proposal, response.code, self.now_ms)
        self.send_proposal(broker, again)

    # ── Invariants ──

    def check(self) -> None:
        """Check the invariants after every event."""
        self.note_committed()
        self.note_healed()
        state = self.state
        assert state.leader == NO_NODE or state.leader in state.isr
        if self.may_lose:
            return
        for number in (*state.isr, *state.elr):
            if self.hurt.get(number) != state.broker_epochs[number]:
                self.check_has_committed(self.brokers[number])

    def note_committed(self) -> None:
        """Everything any presumed leader exposes is committed, and all agree on it."""
        for broker in self.brokers.values():
            leader = broker.leader
            if leader is None:
                continue
            machine, shown_offset = self.shown.get(broker.id, (None, 0))
            if machine is not leader:
                shown_offset = max(leader.high_watermark - LOOKED_BACK, 0)
            elif leader.high_watermark != shown_offset:
                self.check_advance(leader, shown_offset)
            self.shown[broker.id] = (leader, leader.high_watermark)
            for offset in range(shown_offset, leader.high_watermark):
                entry = broker.log.at(offset)
                if entry is not None:
                    assert self.committed.setdefault(offset, entry) == entry or self.may_lose
            self.committed_end = max(self.committed_end, leader.high_watermark)

    def check_advance(self, leader: LeaderMachine, from_offset: int) -> None:
        """A high watermark only grows, up to what all replicas have that are or may be in sync, at least min ISR."""
        assert leader.high_watermark > from_offset
        assert len(leader.isr) >= min(self.controller.min_isr, len(leader.replicas))
        needed = leader.isr + (leader.proposal.isr if leader.proposal else ())
        for number, progress in leader.followers.items():
            assert number not in needed or progress.end_offset >= leader.high_watermark
        assert leader.high_watermark <= leader.end_offset

    @property
    def may_lose(self) -> bool:
        """Return whether data loss is allowed; then all replicas need only become the same."""
        return self.controller.is_unclean_allowed

    def note_healed(self) -> None:
        state = self.state
        for number, epoch in list(self.hurt.items()):
            has_caught_up = number in state.isr and state.broker_epochs[number] != epoch
            if has_caught_up or number not in state.replicas:
                del self.hurt[number]

    def check_has_committed(self, broker: Broker) -> None:
        log = broker.log
        assert log.end_offset >= self.committed_end, f"{broker.id} may lead and lacks what is committed"
        for offset in range(max(log.start_offset, self.committed_end - LOOKED_BACK), self.committed_end):
            assert log.at(offset) == self.committed[offset], f"{broker.id} has something else at {offset}"

    def check_cut(self, broker: Broker, end_offset: int) -> None:
        """Check that nothing the leader has is truncated."""
        follower = broker.follower
        assert follower is not None
        leader = self.brokers[follower.leader]
        if leader.leader is None or leader.leader.leader_epoch != follower.leader_epoch:
            return
        if self.may_lose:
            return  # an intermediate leader may have lost its data
        for offset in range(max(end_offset, broker.log.start_offset), broker.log.end_offset):
            theirs = leader.log.at(offset)
            assert theirs is None or theirs != broker.log.at(offset), (
                f"{broker.id} cuts what its leader has at {offset}"
            )
