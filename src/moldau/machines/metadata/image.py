"""Immutable image of the cluster metadata at an offset of its log; handlers may keep a reference."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from moldau.machines.access.acls import AclBinding
from moldau.machines.access.scram import ScramCredential, ScramUser
from moldau.model.ids import (
    LOST_DIRECTORY,
    NO_DIRECTORY,
    NO_EPOCH,
    NO_NODE,
    NO_OFFSET,
    NO_TOPIC_ID,
    UNASSIGNED_DIRECTORY,
    Address,
    TopicId,
)

ELR_FEATURE: Final = "eligible.leader.replicas.version"
CORDONED: Final = "cordoned.log.dirs"
_ONLY_OFFLINE: Final = (LOST_DIRECTORY,)
_UNASSIGNED: Final = (NO_DIRECTORY, UNASSIGNED_DIRECTORY)
NOTHING_SET: Final[Mapping[str, str]] = MappingProxyType({})


class ResourceType(IntEnum):
    """Resource types of configs, by DescribeConfigs' number."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


QuotaEntity = tuple[tuple[str, str | None], ...]
"""An entity with client quotas: pairs of entity type and name, sorted by type. The name None is the default entity."""


def quota_entity(pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The canonical form of an entity."""
    return tuple(sorted(pairs, key=itemgetter(0)))


class Resource(NamedTuple):
    """A resource with configs. The broker name '' stands for all brokers."""

    type: int
    name: str


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """Replicas, ISR, leader and epochs of a partition."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory_of(self, broker_id: int) -> bytes:
        """Return the id of the log dir with this broker's replica; a reserved id if none is assigned."""
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id:
                return directory
        return NO_DIRECTORY

    @property
    def trusted(self) -> tuple[int, ...]:
        """Replicas that the partition relies on: none of these may restart empty."""
        return (*self.isr, *self.eligible_leader_replicas, *self.last_known_elr)

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_NODE

    @property
    def is_moving(self) -> bool:
        """Whether it is being reassigned."""
        return bool(self.adding_replicas or self.removing_replicas)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic and its partitions, by index."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...] = ()


class ListenerImage(NamedTuple):
    """An advertised listener of a broker."""

    name: str
    address: Address
    security_protocol: int  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


class VersionRange(NamedTuple):
    """Supported levels of a feature."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A broker's registration. In `directories`, LOST_DIRECTORY separates the online log dirs from the offline ones."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    listeners: tuple[ListenerImage, ...]
    features: Mapping[str, VersionRange]
    rack: str | None = None
    is_fenced: bool = True
    is_shutting_down: bool = False
    directories: tuple[bytes, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether it may lead partitions and join ISRs."""
        return not self.is_fenced and not self.is_shutting_down and self.directories[:1] != _ONLY_OFFLINE

    @property
    def has_only_offline_dirs(self) -> bool:
        """Whether none of its log dirs can be written: it leads only what no other broker can lead."""
        return self.directories[:1] == _ONLY_OFFLINE

    @property
    def online_directories(self) -> tuple[bytes, ...]:
        return self._split_directories()[0]

    @property
    def offline_directories(self) -> tuple[bytes, ...]:
        """The log dirs that cannot be written."""
        return self._split_directories()[1]

    def _split_directories(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        if LOST_DIRECTORY not in self.directories:
            return self.directories, ()
        separator = self.directories.index(LOST_DIRECTORY)
        return self.directories[:separator], self.directories[separator + 1 :]

    def with_offline_directories(self, offline: Collection[bytes]) -> "BrokerImage":
        """Return this registration with exactly these log dirs offline."""
        own = [each for each in self.directories if each != LOST_DIRECTORY]
        lost = [each for each in own if each in offline]
        separator = [LOST_DIRECTORY] if lost else []
        return replace(self, directories=(*(each for each in own if each not in lost), *separator, *lost))

    def has_online(self, directory: bytes) -> bool:
        """Whether a replica assigned to this log dir is online. One without a log dir is, if any log dir is."""
        own = self.directories
        if LOST_DIRECTORY not in own:
            return directory in own or not own or directory in _UNASSIGNED
        if directory in _UNASSIGNED:
            return not self.has_only_offline_dirs
        return directory in self.online_directories

    def address(self, listener: str) -> Address | None:
        """Return its address for the listener of this name."""
        for each in self.listeners:
            if each.name == listener:
                return each.address
        return None


@dataclass(frozen=True, slots=True)
class ControllerImage:
    """A controller's registration."""

    controller_id: int
    incarnation_id: bytes
    listeners: tuple[ListenerImage, ...]
    features: Mapping[str, VersionRange]


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token (KIP-48). Its HMAC follows from its id and the secret key of the brokers."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    expires_at_most_ms: int  # renewals included


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Everything in the metadata log up to and including `offset`. Mappings never change in place."""

    offset: int = NO_OFFSET
    epoch: int = NO_EPOCH
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    configs: Mapping[Resource, Mapping[str, str]] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    scram_credentials: Mapping[ScramUser, ScramCredential] = field(default_factory=dict)
    delegation_tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    acls: Mapping[bytes, AclBinding] = field(default_factory=dict)  # by the id of the record

    def topic_id(self, name: str) -> TopicId:
        """Return a topic's id, all zeros if there is no such topic."""
        topic = self.topics.get(name)
        return topic.topic_id if topic else NO_TOPIC_ID

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.topics_by_id.get(TopicId(topic_id))
        return topic.name if topic else None

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """Return the configs set on the topic; others have their default."""
        return self.configs.get(Resource(ResourceType.TOPIC, topic), NOTHING_SET)

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """Return the dynamic configs of a broker, or of all brokers with None."""
        name = "" if broker_id is None else str(broker_id)
        return self.configs.get(Resource(ResourceType.BROKER, name), NOTHING_SET)

    def is_cordoned(self, broker_id: int) -> bool:
        """Whether a broker gets no new partitions (KIP-1066): as many log dirs are named as it has, or all with *."""
        names = self._cordoned(broker_id)
        broker = self.brokers.get(broker_id)
        log_dirs = len([each for each in broker.directories if each != LOST_DIRECTORY]) if broker is not None else 1
        return "*" in names or len(names) >= max(log_dirs, 1)

    def is_log_dir_cordoned(self, broker_id: int, path: str) -> bool:
        """Whether a log dir gets no new partitions."""
        names = self._cordoned(broker_id)
        return path in names or self.is_cordoned(broker_id)

    def _cordoned(self, broker_id: int) -> set[str]:
        names = self.broker_configs(broker_id).get(CORDONED, "").split(",")
        return {each.strip() for each in names if each.strip()}

    @property
    def has_elr(self) -> bool:
        """Whether replicas that left an ISR below min ISR stay eligible (KIP-966)."""
        return self.features.get(ELR_FEATURE, 0) > 0

    def is_online(self, broker_id: int, partition: PartitionImage) -> bool:
        """Whether the broker is active and the log dir of its replica is online."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active and broker.has_online(partition.directory_of(broker_id))

    def is_active(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active
