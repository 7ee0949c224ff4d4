"""A small cluster around a real metadata machine: brokers with stale metadata, data that can be lost.

Each replica holds numbers. A leader writes one to its presumed ISR, and it is acknowledged if the leader knows of
enough replicas. A leader elected without data loss being allowed must hold every acknowledged number.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from metadata_scene import Rules, replayed

from moldau.machines.decision import REQUESTER, CancelTimer, Decision
from moldau.machines.metadata import (
    Alteration,
    BrokerHeartbeat,
    ConfigChange,
    HeartbeatResult,
    IsrProposal,
    IsrResult,
    ListenerImage,
    MetadataImage,
    MetadataMachine,
    MetadataSettings,
    NewTopic,
    Operation,
    PartitionImage,
    Reassignment,
    Registration,
    Resource,
    ResourceType,
)
from moldau.machines.metadata.cluster_view import MIN_ISR, UNCLEAN, ClusterView
from moldau.machines.metadata.elect_leaders import ElectionType
from moldau.machines.metadata.features import SUPPORTED_FEATURES, FeatureUpdate, UpgradeType
from moldau.machines.metadata.image import ELR_FEATURE
from moldau.machines.metadata.partition_index import PartitionIndex
from moldau.machines.metadata.records import Record
from moldau.model.errors import ErrorCode, KafkaError, StaleBrokerEpoch
from moldau.model.ids import Address

BROKERS = (1, 2, 3, 4)
TOPIC = "t"
PARTITIONS = 3
SETTINGS = MetadataSettings(leader_imbalance_check_interval_ms=30_000)


@dataclass
class Broker:
    """One broker: the metadata it knows, the partitions it leads, the data it holds."""

    id: int
    is_up: bool = False
    life: int = 0
    epoch: int = -1
    image: MetadataImage = field(default_factory=MetadataImage)
    beliefs: dict[int, PartitionImage] = field(default_factory=dict)
    proposed: dict[int, tuple[int, ...]] = field(default_factory=dict)  # waited for, but not counted towards min ISR
    holds: dict[int, set[int]] = field(default_factory=dict)
    seen: dict[tuple[int, int], int] = field(default_factory=dict)  # (partition, follower): broker epoch at catch-up


class Model:
    """Decisions are committed at once; brokers learn of them on demand."""

    def __init__(self, has_elr: bool = True) -> None:
        self.now_ms = 0.0
        self.log: list[Record] = []
        self.timers: dict[Hashable, float] = {}
        self.machine = MetadataMachine(SETTINGS, Rules())
        self.image = self.machine.image
        self.brokers = {each: Broker(each) for each in BROKERS}
        self.acknowledged: dict[int, set[int]] = {}
        self.written = 0
        self.allows_data_loss = False  # during a request that allows it
        self.proposed: tuple[int, ...] = ()  # the ISR of the request being decided
        self.promised_from: dict[int, int] = {}  # leaders of earlier epochs were replaced with data loss
        self.losing: int | None = None  # the broker that registers after a loss
        self.sent: list[tuple[int, int, IsrProposal]] = []
        self.elections = 0
        self.run(self.machine.decide_elected(0.0))
        if not has_elr:
            off = FeatureUpdate(ELR_FEATURE, 0, UpgradeType.SAFE_DOWNGRADE)
            self.run(self.machine.decide_update_features([off]))
        for broker_id in BROKERS:
            self.start(broker_id, is_dirty=False)
            self.learn(broker_id)
            self.beat(broker_id)
        assignments = [(0, [1, 2, 3]), (1, [2, 3, 4]), (2, [3, 1, 4])]
        wanted = NewTopic(TOPIC, assignments=assignments, configs=[(MIN_ISR, "2")])
        self.run(self.machine.decide_create_topics([wanted], randomness=[b"r" * 16], start=0))
        assert len(self.partitions(self.image)) == PARTITIONS
        for broker_id in BROKERS:
            self.learn(broker_id)

    # The controller

    def run(self, decision: Decision[Record, Any]) -> Any:
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(record)
        for change in decision.timers:
            self.timers.pop(change.event, None)
            if not isinstance(change, CancelTimer):
                self.timers[change.event] = self.now_ms + change.delay_ms
        before, self.image = self.image, self.machine.image
        self.check(before, self.image)
        return decision.responses[REQUESTER]

    def ask(self, decide: Callable[[], Decision[Record, Any]]) -> Any:
        """Return None if it was rejected."""
        with suppress(KafkaError):
            return self.run(decide())
        return None

    def pass_time(self, ms: float) -> None:
        """Fire due timers in order, a bounded number of times."""
        until = self.now_ms + ms
        for _ in range(200):
            due = [(when, index, event) for index, (event, when) in enumerate(self.timers.items()) if when <= until]
            if not due:
                break
            when, _, event = min(due, key=lambda each: each[:2])
            del self.timers[event]
            self.now_ms = max(self.now_ms, when)
            self.run(self.machine.decide_timed_out(event, self.now_ms))
        self.now_ms = until

    def fail_over(self) -> None:
        """Let another controller take over with only the log."""
        self.timers.clear()
        self.machine = replayed(self.log, SETTINGS)
        assert self.machine.image == self.image
        self.run(self.machine.decide_elected(self.now_ms))

    # Brokers

    def start(self, broker_id: int, *, is_dirty: bool) -> None:
        broker = self.brokers[broker_id]
        if broker.is_up:
            return
        broker.life += 1
        broker.beliefs.clear()
        broker.proposed.clear()
        broker.seen.clear()
        if is_dirty:
            self._lose(broker)
        broker.is_up = True
        self._register(broker, -1 if is_dirty else broker.epoch)

    def _lose(self, broker: Broker) -> None:
        """Drop all data of a broker. Without another in-sync or eligible replica that breaks no promise."""
        broker.holds.clear()
        broker.epoch = -1
        for index, partition in self.partitions(self.image):
            if {*partition.isr, *partition.eligible_leader_replicas} <= {broker.id}:
                self.acknowledged.get(index, set()).clear()

    def _register(self, broker: Broker, previous_epoch: int) -> None:
        registration = Registration(
            broker.id,
            bytes([broker.id, broker.life % 256]) * 8,
            (ListenerImage("PLAINTEXT", Address(f"host{broker.id}", 9092), 0),),
            SUPPORTED_FEATURES,
            directories=(bytes([broker.id]) * 16,),
            previous_epoch=previous_epoch,
        )
        known = self.image.brokers.get(broker.id)
        self.losing = broker.id if known is None or known.epoch != previous_epoch else None
        broker.epoch = self.run(self.machine.decide_register_broker(registration, next_offset=len(self.log)))
        self.losing = None

    def beat(self, broker_id: int, *, stops: bool = False) -> HeartbeatResult | None:
        broker = self.brokers[broker_id]
        if not broker.is_up:
            return None
        heartbeat = BrokerHeartbeat(broker_id, broker.epoch, broker.image.offset, wants_shut_down=stops)
        try:
            response: HeartbeatResult = self.run(self.machine.decide_broker_heartbeat(heartbeat, self.now_ms))
        except StaleBrokerEpoch:
            self._register(broker, broker.epoch)
            return None
        return response

    def stop(self, broker_id: int) -> None:
        response = self.beat(broker_id, stops=True)
        if response is not None and response.should_shut_down:
            assert all(partition.leader != broker_id for _, partition in self.partitions(self.image))
            self.brokers[broker_id].is_up = False

    def learn(self, broker_id: int) -> None:
        """Apply everything committed."""
        broker = self.brokers[broker_id]
        if not broker.is_up:
            return
        broker.image = self.image
        for index, partition in self.partitions(broker.image):
            belief = broker.beliefs.get(index)
            if belief is None or belief.partition_epoch <= partition.partition_epoch:
                broker.beliefs[index] = partition
                if belief is not None and belief.partition_epoch < partition.partition_epoch:
                    broker.proposed.pop(index, None)
                if belief is None or belief.leader_epoch != partition.leader_epoch:
                    broker.seen = {key: epoch for key, epoch in broker.seen.items() if key[0] != index}

    def leads(self, broker: Broker, index: int) -> PartitionImage | None:
        belief = broker.beliefs.get(index)
        return belief if broker.is_up and belief is not None and belief.leader == broker.id else None

    def follows(self, follower: Broker, index: int, belief: PartitionImage) -> bool:
        """Return whether the follower fetches from this leader in this epoch."""
        theirs = follower.beliefs.get(index)
        return follower.is_up and theirs is not None and theirs.leader_epoch == belief.leader_epoch

    def write(self, broker_id: int, index: int) -> None:
        broker = self.brokers[broker_id]
        belief = self.leads(broker, index)
        if belief is None:
            return
        members = [self.brokers[each] for each in dict.fromkeys((*belief.isr, *broker.proposed.get(index, ())))]
        if not all(each is broker or self.follows(each, index, belief) for each in members):
            return
        self.written += 1
        for each in members:
            each.holds.setdefault(index, set()).add(self.written)
        min_isr = ClusterView(broker.image, PartitionIndex(), SETTINGS).min_isr(TOPIC)
        is_enough = len(belief.isr) >= min(min_isr, len(belief.replicas))
        if is_enough and belief.leader_epoch >= self.promised_from.get(index, 0):
            self.acknowledged.setdefault(index, set()).add(self.written)

    def fetch(self, follower_id: int, index: int) -> None:
        """Copy the leader's data to a follower; the leader records the follower's broker epoch."""
        follower = self.brokers[follower_id]
        for leader in self.brokers.values():
            belief = self.leads(leader, index)
            if belief is not None and leader is not follower and self.follows(follower, index, belief):
                follower.holds[index] = set(leader.holds.get(index, ()))
                leader.seen[index, follower_id] = follower.epoch

    def propose(self, broker_id: int, index: int, *, without: int | None = None) -> None:
        """Propose to add caught-up replicas, or to drop one."""
        broker = self.brokers[broker_id]
        belief = self.leads(broker, index)
        if belief is None:
            return
        members = [each for each in belief.isr if each != without or each == broker_id]
        if without is None:
            members += [each for each in belief.replicas if (index, each) in broker.seen and each not in members]
        # Records written since are acknowledged only once all proposed members have them.
        for each in members:
            if each not in belief.isr and self.brokers[each].epoch == broker.seen[index, each]:
                self.brokers[each].holds[index] = set(broker.holds.get(index, ()))
        broker.proposed[index] = (*broker.proposed.get(index, ()), *members)
        if self._send(broker, index, belief, members) == ErrorCode.INELIGIBLE_REPLICA:
            self._send(broker, index, belief, list(belief.isr))  # unchanged, so that no copy of the other follows it

    def _send(self, broker: Broker, index: int, belief: PartitionImage, members: list[int]) -> ErrorCode:
        epochs = [(each, broker.epoch if each == broker.id else broker.seen.get((index, each), -1)) for each in members]
        topic_id = self.image.topic_id(TOPIC)
        proposal = IsrProposal(topic_id, index, belief.leader_epoch, belief.partition_epoch, epochs)
        self.sent.append((broker.id, broker.epoch, proposal))
        outcome = self._decide(*self.sent[-1])
        if outcome is None:
            return ErrorCode.STALE_BROKER_EPOCH
        if outcome.partition is not None:
            broker.beliefs[index] = outcome.partition
            broker.proposed.pop(index, None)
        return outcome.error

    def _decide(self, broker_id: int, epoch: int, proposal: IsrProposal) -> IsrResult | None:
        self.proposed = tuple(each for each, _ in proposal.isr)
        outcomes = self.ask(lambda: self.machine.decide_alter_partition(broker_id, epoch, [proposal]))
        self.proposed = ()
        return outcomes[0] if outcomes else None

    def echo(self, number: int) -> None:
        """Deliver a copy of an old proposal, without a response."""
        if self.sent:
            self._decide(*self.sent[-1 - number % len(self.sent)])

    def catch_up(self) -> None:
        """Let every live broker learn, send heartbeats, fetch, and join the ISR."""
        for broker_id in BROKERS:
            self.learn(broker_id)
            self.beat(broker_id)
        for broker_id in BROKERS:
            self.learn(broker_id)
        for index in range(PARTITIONS):
            for broker_id in BROKERS:
                self.fetch(broker_id, index)
            for broker_id in BROKERS:
                self.propose(broker_id, index)
        for broker_id in BROKERS:
            self.learn(broker_id)

    # Requests

    def move(self, index: int, replicas: list[int] | None) -> None:
        self.ask(lambda: self.machine.decide_alter_reassignments([Reassignment(TOPIC, index, replicas)]))

    def elect(self, election_type: ElectionType) -> None:
        self.allows_data_loss = election_type is ElectionType.UNCLEAN
        self.ask(lambda: self.machine.decide_elect_leaders(election_type, None))
        self.allows_data_loss = False

    def configure(self, name: str, value: str) -> None:
        change = Alteration(Resource(ResourceType.TOPIC, TOPIC), [ConfigChange(name, Operation.SET, value)])
        self.allows_data_loss = (name, value) == (UNCLEAN, "true")
        self.ask(lambda: self.machine.decide_incremental_alter_configs([change]))
        self.allows_data_loss = False

    def switch(self, level: int) -> None:
        """Enable or disable eligible leader replicas."""
        kind = UpgradeType.UPGRADE if level else UpgradeType.SAFE_DOWNGRADE
        self.ask(lambda: self.machine.decide_update_features([FeatureUpdate(ELR_FEATURE, level, kind)]))

    def fence(self, broker_id: int) -> None:
        known = self.image.brokers.get(broker_id)
        if known is not None:
            self.ask(lambda: self.machine.decide_fence_broker(broker_id, known.epoch))

    def unregister(self, broker_id: int) -> None:
        self.ask(lambda: self.machine.decide_unregister_broker(broker_id))

    # Invariants

    def partitions(self, image: MetadataImage) -> list[tuple[int, PartitionImage]]:
        topic = image.topics.get(TOPIC)
        return list(enumerate(topic.partitions)) if topic else []

    def check(self, before: MetadataImage, after: MetadataImage) -> None:
        old = dict(self.partitions(before))
        for index, new in self.partitions(after):
            self._check_partition(after, new)
            if index in old:
                self._check_step(before, index, old[index], new)
        self._check_index()

    def _check_partition(self, image: MetadataImage, new: PartitionImage) -> None:
        assert len(set(new.replicas)) == len(new.replicas) == len(new.directories) > 0
        assert len(set(new.isr)) == len(new.isr)
        assert set(new.isr) <= set(new.replicas)
        assert set(new.eligible_leader_replicas) <= set(new.replicas)
        assert not set(new.eligible_leader_replicas) & set(new.isr)
        assert set(new.adding_replicas) | set(new.removing_replicas) <= set(new.replicas)
        assert set(new.replicas) != set(new.removing_replicas)
        assert {*new.isr, *new.eligible_leader_replicas, *new.last_known_elr} & set(new.replicas)
        if new.has_leader:
            assert new.leader in new.isr
            assert image.is_active(new.leader)
            assert not new.last_known_elr

    def _check_step(self, before: MetadataImage, index: int, old: PartitionImage, new: PartitionImage) -> None:
        if old == new:
            return
        assert new.partition_epoch > old.partition_epoch
        assert new.leader_epoch >= old.leader_epoch
        if set(old.replicas) - set(new.replicas) - set(old.adding_replicas):
            assert set(new.isr) == set(new.replicas), f"partition {index} was moved before all were in sync: {new}"
        if old.leader == new.leader:
            return
        assert new.leader_epoch > old.leader_epoch
        if new.has_leader:
            self.elections += 1
            self._check_elected(before, index, old, new)

    def _check_elected(self, before: MetadataImage, index: int, old: PartitionImage, new: PartitionImage) -> None:
        holds = self.brokers[new.leader].holds.setdefault(index, set())
        acknowledged = self.acknowledged.setdefault(index, set())
        if new.leader in (*old.isr, *old.eligible_leader_replicas, *self.proposed):
            assert acknowledged <= holds, f"{new.leader} lacks {acknowledged - holds} of partition {index}"
            return
        others = {*old.isr, *old.eligible_leader_replicas} - {self.losing}
        is_last = not others and old.last_known_elr == (new.leader,)
        accepts = self.allows_data_loss or ClusterView(before, PartitionIndex(), SETTINGS).allows_unclean(TOPIC)
        assert is_last or accepts, f"{new.leader} leads partition {index} and may lack something"
        acknowledged &= holds
        self.promised_from[index] = new.leader_epoch

    def _check_index(self) -> None:
        index = self.machine._index
        partitions = dict(self.partitions(self.image))
        for broker_id in BROKERS:
            assert sorted(key.partition for key in index.of(broker_id)) == [
                number for number, each in partitions.items() if broker_id in each.replicas
            ]
        for found, expected in (
            (index.leaderless, [number for number, each in partitions.items() if not each.has_leader]),
            (index.moving, [number for number, each in partitions.items() if each.is_moving]),
            (index.with_eligible, [number for number, each in partitions.items() if each.eligible_leader_replicas]),
        ):
            assert sorted(key.partition for key in found) == expected

    # Healing

    def heal(self) -> None:
        """Restart all brokers and let them learn; the rest is up to the controller and the leaders."""
        for _ in range(6):
            for broker_id in BROKERS:
                self.start(broker_id, is_dirty=False)
            self.catch_up()
            self.pass_time(2_000)

    def check_healed(self) -> None:
        for broker_id in BROKERS:
            assert self.image.is_active(broker_id)
        for index, partition in self.partitions(self.image):
            assert partition.has_leader, f"partition {index} has no leader: {partition}"
            assert not partition.is_moving, f"partition {index} still moves: {partition}"
            assert set(partition.isr) == set(partition.replicas)
            assert not partition.eligible_leader_replicas
