"""A replicated partition under random faults loses no committed record, and recovers."""

import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest
from replication_scene import MESSAGES_MAX, Broker, Cluster, Decided

Message = TypeVar("Message")

SEEDS = int(os.environ.get("REPLICATION_SEEDS", "60"))
STEPS = 800
EVENT_WEIGHTS: list[dict[str, float]] = [  # event frequencies
    {},
    {"wait": 2, "tick": 4, "fence": 6, "unfence": 3, "lose_a_message": 8, "learn": 0.7},
    {"move_leader": 8, "crash": 5, "restart": 3, "unfence": 2, "checkpoint": 5},
    {"lose_power": 8, "restart": 3, "unfence": 2, "sync": 3},
]
ROUNDS_MAX = 400
ROUND_MS = 60.0


class Chaos:
    """Draws events. The seed also draws how often each event happens."""

    def __init__(self, seed: int, *, is_unclean_allowed: bool = False) -> None:
        self.random = random = Random(seed)
        replicas = random.choice([2, 2, 3, 3, 3, 4])
        is_flushing = random.random() < 0.2
        self.cluster = Cluster(
            random,
            brokers=replicas + random.choice([0, 1]),
            replicas=replicas,
            min_isr=random.randint(1, min(replicas, 3)),
            is_flushing=is_flushing,
            is_unclean_allowed=is_unclean_allowed,
        )
        self.counts: Counter[str] = Counter()
        self.repeats = random.choice([0.05, 0.3])
        weights = random.choice(EVENT_WEIGHTS)
        self.weights = {
            event: weight * weights.get(event.__name__, 1) * random.choice([0.5, 1, 1, 2])
            for event, weight in self.events().items()
        }

    def events(self) -> dict[Callable[[], None], float]:
        return {
            self.produce: 12,
            self.fetch: 30,
            self.serve: 30,
            self.take: 30,
            self.catch_up: 20,
            self.learn: 20,
            self.decide: 10,
            self.receive_decision: 10,
            self.wait: 3,
            self.tick: 5,
            self.sync: 2,
            self.lose_a_message: 1,
            self.crash: 0.3,
            self.lose_power: 0.3,
            self.restart: 3,
            self.fence: 0.3,
            self.unfence: 8,
            self.move_leader: 0.5,
            self.reassign: 0.3,
            self.delete_records: 0.3,
            self.checkpoint: 1,
        }

    def run(self, steps: int) -> None:
        events = list(self.weights)
        for event in self.random.choices(events, list(self.weights.values()), k=steps):
            self.counts[event.__name__] += 1
            event()
            self.cluster.check()

    # Events

    def broker(self) -> Broker:
        """Return any broker; more often one that leads, or still believes so."""
        if self.random.random() < 0.3 and self.leading():
            return self.random.choice(self.leading())
        return self.random.choice(list(self.cluster.brokers.values()))

    def leading(self) -> list[Broker]:
        return [each for each in self.cluster.brokers.values() if each.leader is not None]

    def produce(self) -> None:
        if self.leading():
            self.cluster.produce(self.random.choice(self.leading()), self.random.randint(1, 3))

    def fetch(self) -> None:
        broker = self.broker()
        is_waiting = any(each.sender == broker.id for each in self.cluster.fetches)
        if len(self.cluster.fetches) < MESSAGES_MAX and (not is_waiting or self.random.random() < 0.1):
            self.cluster.fetch(broker)

    def catch_up(self) -> None:
        """Let a follower fetch without interruption, which is the usual case."""
        broker, cluster = self.broker(), self.cluster
        while broker.is_up and broker.seen < len(cluster.controller.history):
            cluster.learn(broker)
            cluster.check()
        cluster.fetch(broker)
        if broker.follower is not None:
            count = len(cluster.responses)
            cluster.serve(cluster.fetches.pop())
            if len(cluster.responses) > count:
                cluster.check()
                cluster.take(cluster.responses.pop())

    def serve(self) -> None:
        self.deliver(self.cluster.fetches, self.cluster.serve)

    def take(self) -> None:
        self.deliver(self.cluster.responses, self.cluster.take)

    def decide(self) -> None:
        self.deliver(self.cluster.proposals, self.cluster.decide)

    def receive_decision(self) -> None:
        self.deliver(self.cluster.decisions, self.cluster.receive_decision)

    def deliver(self, messages: list[Message], receive: Callable[[Message], None]) -> None:
        """Deliver a message, mostly in order, sometimes twice."""
        if messages:
            number = 0 if self.random.random() < 0.7 else self.random.randrange(len(messages))
            is_repeated = self.random.random() < self.repeats and len(messages) < MESSAGES_MAX
            receive(messages[number] if is_repeated else messages.pop(number))

    def lose_a_message(self) -> None:
        cluster = self.cluster
        if cluster.proposals and self.random.random() < 0.5:
            number = self.random.randrange(len(cluster.proposals))
            lost = cluster.proposals[number]
            if self.random.random() < 0.5:  # given up, though it may arrive later
                del cluster.proposals[number]
            cluster.decisions.append(Decided(lost.sender, lost.broker_epoch, lost.proposal, None))
            return
        for messages in (cluster.fetches, cluster.responses):
            if messages:
                messages.pop(self.random.randrange(len(messages)))

    def wait(self) -> None:
        self.cluster.now_ms += self.random.choice([1.0, 50.0, 200.0, 1_100.0])

    def tick(self) -> None:
        self.cluster.tick(self.broker())

    def sync(self) -> None:
        broker = self.broker()
        if broker.is_up:
            self.cluster.sync(broker)

    def learn(self) -> None:
        behind = [each for each in self.cluster.brokers.values() if each.seen < len(self.cluster.controller.history)]
        if behind:
            self.cluster.learn(self.random.choice(behind))

    def crash(self) -> None:
        brokers = self.cluster.brokers.values() if self.random.random() < 0.2 else [self.broker()]
        for broker in brokers:
            if broker.is_up:
                self.cluster.crash(broker)

    def lose_power(self) -> None:
        broker = self.broker()
        if broker.is_up and (self.cluster.may_lose_power(broker) or self.cluster.controller.is_unclean_allowed):
            self.cluster.lose_power(broker)
            self.counts["power lost"] += 1

    def restart(self) -> None:
        down = [each for each in self.cluster.brokers.values() if not each.is_up]
        if down:
            self.cluster.start(self.random.choice(down))

    def fence(self) -> None:
        leader = self.cluster.state.leader
        broker = self.broker().id
        if broker != leader or self.random.random() < 0.1:
            self.cluster.controller.fence(broker)

    def unfence(self) -> None:
        unfenced = self.cluster.state.unfenced
        fenced = [each for each in self.cluster.brokers.values() if each.is_up and each.id not in unfenced]
        if fenced:
            self.cluster.controller.unfence(self.random.choice(fenced).id)

    def move_leader(self) -> None:
        self.cluster.controller.move_leader(self.broker().id)

    def reassign(self) -> None:
        if self.random.random() < 0.5:
            self.cluster.controller.reassign(add=self.broker().id)
        else:
            self.cluster.controller.reassign(remove=self.broker().id)

    def delete_records(self) -> None:
        self.cluster.delete_records(self.broker())

    def checkpoint(self) -> None:
        broker = self.broker()
        if broker.machine is not None:
            broker.high_watermark_checkpoint = broker.machine.high_watermark

    # Healing

    def heal(self) -> None:
        """Restart all brokers and deliver every message: soon all replicas must be the same."""
        cluster = self.cluster
        for _ in range(ROUNDS_MAX):
            self.round()
            if self.is_whole():
                break
        assert self.is_whole(), "it does not recover"
        leader = cluster.brokers[cluster.state.leader]
        cluster.produce(leader, 2)
        for _ in range(6):
            self.round()
        assert leader.leader is not None
        assert leader.leader.high_watermark == leader.log.end_offset
        assert self.is_whole()

    def round(self) -> None:
        cluster = self.cluster
        cluster.now_ms += ROUND_MS
        for broker in cluster.brokers.values():
            if not broker.is_up:
                cluster.start(broker)
            cluster.controller.unfence(broker.id)
            while broker.seen < len(cluster.controller.history):
                cluster.learn(broker)
                cluster.check()
            cluster.sync(broker)
            cluster.check()
            cluster.tick(broker)
            cluster.check()
            cluster.fetch(broker)
        self.deliver_all(cluster.fetches, cluster.serve)
        self.deliver_all(cluster.responses, cluster.take)
        self.deliver_all(cluster.proposals, cluster.decide)
        self.deliver_all(cluster.decisions, cluster.receive_decision)

    def deliver_all(self, messages: list[Message], receive: Callable[[Message], None]) -> None:
        delivered = list(messages)
        messages.clear()
        for message in delivered:
            receive(message)
            self.cluster.check()

    def is_whole(self) -> bool:
        cluster = self.cluster
        state = cluster.state
        leader = cluster.brokers.get(state.leader)
        if leader is None or leader.leader is None or set(state.isr) != set(state.replicas):
            return False
        logs = [cluster.brokers[number].log for number in state.replicas]
        start_offset = max(log.start_offset for log in logs)
        ends = {log.end_offset for log in logs}
        entries = {tuple(log.read(start_offset, 10_000)) for log in logs}
        return len(ends) == len(entries) == 1 and leader.leader.high_watermark == leader.log.end_offset


@pytest.mark.proves("H2")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_committed_record_is_lost_and_replicas_converge(seed: int) -> None:
    chaos = Chaos(seed)
    chaos.run(STEPS)
    chaos.heal()
    for number in chaos.cluster.state.replicas:
        log = chaos.cluster.brokers[number].log
        assert all(log.at(offset) in (entry, None) for offset, entry in chaos.cluster.committed.items())
        assert log.end_offset >= chaos.cluster.committed_end


@pytest.mark.proves("H4")
@pytest.mark.parametrize("seed", range(1_000, 1_000 + SEEDS // 2))
def test_replicas_converge_after_unclean_elections(seed: int) -> None:
    chaos = Chaos(seed, is_unclean_allowed=True)
    chaos.run(STEPS)
    chaos.heal()


@pytest.mark.parametrize("is_unclean_allowed", [False, True])
def test_runs_contain_every_kind_of_fault(is_unclean_allowed: bool) -> None:
    """A run in which nothing happened proves nothing."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        chaos = Chaos(seed, is_unclean_allowed=is_unclean_allowed)
        chaos.run(STEPS)
        cluster = chaos.cluster
        seen["records committed"] += cluster.committed_end // 10
        seen["leader epochs"] += cluster.state.leader_epoch
        seen["partition epochs"] += cluster.state.partition_epoch
        seen["truncations"] += cluster.truncations
        seen["power losses"] += chaos.counts["power lost"]
        seen["unclean elections"] += cluster.controller.unclean_elections
        seen["rejections"] += cluster.rejections
    rare = {"unclean elections"} if not is_unclean_allowed else set()
    assert {event for event, count in seen.items() if count < 5} == rare, seen
