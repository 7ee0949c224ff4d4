"""A metadata machine with brokers, and simple config rules."""

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import TypeVar

from moldau.machines.decision import REQUESTER, CancelTimer, Decision, SetTimer
from moldau.machines.metadata import (
    FeatureUpdate,
    ListenerImage,
    MetadataMachine,
    MetadataSettings,
    NewTopic,
    Registration,
    Resource,
    TopicCreated,
)
from moldau.machines.metadata.cluster_view import MIN_ISR, UNCLEAN
from moldau.machines.metadata.features import SUPPORTED_FEATURES, UpgradeType
from moldau.machines.metadata.image import CORDONED, ELR_FEATURE
from moldau.machines.metadata.records import Record
from moldau.model.errors import InvalidConfig, KafkaError
from moldau.model.ids import Address

Response = TypeVar("Response")

REPLICATION = (MIN_ISR, UNCLEAN)


class Rules:
    """Accepts numbers, and one config that is a list."""

    WORDS = frozenset({"cleanup.policy", UNCLEAN, CORDONED})
    KNOWN = frozenset({"retention.ms", "segment.bytes", "log.cleaner.threads", *REPLICATION, *WORDS})

    def check(self, resource: Resource, configs: Mapping[str, str], changed: Set[str]) -> None:
        for name in sorted(configs.keys() | changed):
            if name not in self.KNOWN:
                raise InvalidConfig(f"Unknown topic config name: {name}")
        for name, value in configs.items():
            if name not in self.WORDS and not value.removeprefix("-").isdecimal():
                raise InvalidConfig(f"Invalid value {value} for configuration {name} of {resource.name}")

    def is_list(self, resource: Resource, name: str) -> bool:  # noqa: ARG002
        return name == "cleanup.policy"

    def default(self, resource: Resource, name: str) -> str | None:  # noqa: ARG002
        return "delete" if name == "cleanup.policy" else None


class Scene:
    """Runs decisions on a machine as a driver does, and keeps the log."""

    def __init__(
        self,
        brokers: int = 1,
        settings: MetadataSettings | None = None,
        *,
        has_elr: bool = True,
        racks: Sequence[str | None] = (),
    ) -> None:
        self.machine = MetadataMachine(settings or MetadataSettings(), Rules())
        self.log: list[Record] = []
        self._racks = dict(enumerate(racks, 1))
        self._ids = 0
        self.run(self.machine.decide_elected(0.0))
        if not has_elr:
            off = FeatureUpdate(ELR_FEATURE, 0, UpgradeType.SAFE_DOWNGRADE)
            self.run(self.machine.decide_update_features([off]))
        for broker_id in range(1, brokers + 1):
            self.add_broker(broker_id)

    def run(self, decision: Decision[Record, Response]) -> Response:
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(record)
        response = decision.responses[REQUESTER]
        assert not isinstance(response, KafkaError)
        return response

    def time_out(self, event: Hashable, now_ms: float) -> list[SetTimer | CancelTimer]:
        """Fire a timer; return the timers that are set next."""
        decision = self.machine.decide_timed_out(event, now_ms)
        self.run(decision)
        return list(decision.timers)

    def random_bytes(self) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def register(
        self, broker_id: int, incarnation: bytes = b"i" * 16, *, folder: bytes = b"", is_clean: bool = True
    ) -> int:
        known = self.machine.image.brokers.get(broker_id)
        previous = known.epoch if known is not None and is_clean else -1
        registration = Registration(
            broker_id,
            incarnation,
            (ListenerImage("PLAINTEXT", Address(f"host{broker_id}", 9092), 0),),
            SUPPORTED_FEATURES,
            rack=self._racks.get(broker_id, "rack"),
            directories=(folder or bytes([broker_id]) * 16,),
            previous_epoch=previous,
        )
        return self.run(self.machine.decide_register_broker(registration, next_offset=len(self.log)))

    def add_broker(self, broker_id: int) -> int:
        epoch = self.register(broker_id)
        self.run(self.machine.decide_unfence_broker(broker_id, epoch))
        return epoch

    def create(self, *topics: NewTopic, start: int = 0, validate_only: bool = False) -> list[TopicCreated]:
        return self.run(
            self.machine.decide_create_topics(
                topics,
                randomness=[self.random_bytes() for _ in topics],
                start=start,
                validate_only=validate_only,
            )
        )

    def create_one(self, topic: NewTopic, start: int = 0) -> TopicCreated:
        (outcome,) = self.create(topic, start=start)
        return outcome


def replayed(log: Sequence[Record], settings: MetadataSettings | None = None) -> MetadataMachine:
    """Return a machine rebuilt from the log alone."""
    machine = MetadataMachine(settings or MetadataSettings(), Rules())
    for offset, record in enumerate(log):
        machine.apply(record, offset)
    return machine
