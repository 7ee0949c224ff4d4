"""Cluster metadata as a replicated machine: topics, partitions, configs, brokers, features, producer ids."""

from moldau.machines.metadata.alter_partition import IsrProposal, IsrResult
from moldau.machines.metadata.brokers import Registration
from moldau.machines.metadata.configs import (
    Alteration,
    ConfigChange,
    ConfigRules,
    ConfigsAltered,
    Operation,
    Replacement,
)
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.features import SUPPORTED_FEATURES, FeatureUpdate, FeatureUpdated
from moldau.machines.metadata.heartbeats import BrokerHeartbeat, HeartbeatResult
from moldau.machines.metadata.image import (
    BrokerImage,
    ListenerImage,
    MetadataImage,
    PartitionImage,
    Resource,
    ResourceType,
    TopicImage,
    VersionRange,
)
from moldau.machines.metadata.machine import MetadataMachine
from moldau.machines.metadata.partitions import MorePartitions, PartitionsCreated
from moldau.machines.metadata.producer_ids import ProducerIdBlock
from moldau.machines.metadata.reassignments import Reassigned, Reassignment
from moldau.machines.metadata.settings import MetadataSettings
from moldau.machines.metadata.topics import NewTopic, TopicCreated, TopicDeleted, TopicReference, topic_id_from

__all__ = [
    "SUPPORTED_FEATURES",
    "Alteration",
    "BrokerHeartbeat",
    "BrokerImage",
    "ConfigChange",
    "ConfigRules",
    "ConfigsAltered",
    "FeatureUpdate",
    "FeatureUpdated",
    "HeartbeatResult",
    "IsrProposal",
    "IsrResult",
    "ListenerImage",
    "MetadataDelta",
    "MetadataImage",
    "MetadataMachine",
    "MetadataSettings",
    "MorePartitions",
    "NewTopic",
    "Operation",
    "PartitionImage",
    "PartitionsCreated",
    "ProducerIdBlock",
    "Reassigned",
    "Reassignment",
    "Registration",
    "Replacement",
    "Resource",
    "ResourceType",
    "TopicCreated",
    "TopicDeleted",
    "TopicImage",
    "TopicReference",
    "VersionRange",
    "topic_id_from",
]
