"""Builds the next image from an image and the records after it, copying each mapping at most once."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from moldau.machines.access.scram import ScramUser
from moldau.machines.metadata.acls import acl_of
from moldau.machines.metadata.copy_on_write import SharedMapping
from moldau.machines.metadata.credentials import credential_of_record
from moldau.machines.metadata.delegation_tokens import token_of_record
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import (
    BrokerImage,
    ControllerImage,
    ListenerImage,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    Resource,
    ResourceType,
    TopicImage,
    VersionRange,
    quota_entity,
)
from moldau.machines.metadata.records import (
    METADATA_VERSION_FEATURE,
    METADATA_VERSION_HIGHEST,
    EpochBegan,
    Record,
)
from moldau.model.ids import Address, TopicId
from moldau.wire import messages

NO_LEADER_CHANGE: Final = -2
NO_RECOVERY_CHANGE: Final = -1

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class ImpossibleRecord(Exception):
    """A record contradicts the state it is applied to: the log is corrupt, or the deciding controller has a bug."""


class ImageBuilder:
    """Applies records one by one; `finish` returns the resulting image and the delta.

    Mappings of the image are shared until a record touches them, then copied once until the next `finish`: a thousand
    records cost one copy, a record that touches nothing costs none.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._transaction: list[tuple[Record, int]] | None = None  # buffered until it ends
        self._start_from(image)

    def _start_from(self, image: MetadataImage) -> None:
        self._image = image
        self._is_touched = False
        self._offset = image.offset
        self._epoch = image.epoch
        self._topics: dict[str, TopicImage] | None = None
        self._topics_by_id: dict[TopicId, TopicImage] = {}
        self._drafts: dict[TopicId, dict[int, PartitionImage]] = {}
        self._configs: dict[Resource, dict[str, str]] = {}
        self._brokers: dict[int, BrokerImage] | None = None
        self._controllers: dict[int, ControllerImage] | None = None
        self._features: dict[str, int] | None = None
        self._next_producer_id = image.next_producer_id
        self._client_quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._scram_credentials = SharedMapping(image.scram_credentials)
        self._delegation_tokens = SharedMapping(image.delegation_tokens)
        self._acls = SharedMapping(image.acls)
        self._created: set[TopicId] = set()
        self._removed: dict[TopicId, TopicImage] = {}
        self._changed: dict[TopicId, set[int]] = {}
        self._changed_configs: set[Resource] = set()
        self._changed_brokers: set[int] = set()

    @property
    def is_touched(self) -> bool:
        """Whether a record was applied since the last `finish`."""
        return self._is_touched

    @property
    def is_in_transaction(self) -> bool:
        """Whether records are buffered until their transaction ends: an image of now would lack them."""
        return self._transaction is not None

    def apply(self, record: Record, offset: int) -> None:
        handle = _APPLY.get(type(record))
        if handle is None:
            raise ImpossibleRecord(
                f"a {type(record).__name__} at offset {offset} has an unknown type that is "
                "not ignorable: this version cannot read the metadata log; upgrade it"
            )
        if self._transaction is not None and not isinstance(record, _PASSES):
            self._transaction.append((record, offset))
        else:
            handle(self, record)
        self._offset = offset
        self._is_touched = True

    def finish(self) -> tuple[MetadataImage, MetadataDelta]:
        """Return the new image and the changes since the last one. The builder continues from there."""
        self._finish_topics()
        old = self._image
        image = MetadataImage(
            offset=self._offset,
            epoch=self._epoch,
            topics=old.topics if self._topics is None else self._topics,
            topics_by_id=old.topics_by_id if self._topics is None else self._topics_by_id,
            configs=self._finish_configs(),
            brokers=old.brokers if self._brokers is None else self._brokers,
            controllers=old.controllers if self._controllers is None else self._controllers,
            features=old.features if self._features is None else self._features,
            next_producer_id=self._next_producer_id,
            client_quotas=self._finish_client_quotas(),
            scram_credentials=self._scram_credentials.finish(),
            delegation_tokens=self._delegation_tokens.finish(),
            acls=self._acls.finish(),
        )
        delta = MetadataDelta(
            created=self._created,
            removed=self._removed,
            changed=self._changed,
            configs=self._changed_configs,
            brokers=self._changed_brokers,
            has_new_features=self._features is not None,
            client_quotas=frozenset(self._client_quotas),
            has_new_acls=image.acls is not old.acls,
        )
        self._start_from(image)
        return image, delta

    def _finish_topics(self) -> None:
        for topic_id, draft in self._drafts.items():
            topic = self._topics_by_id[topic_id]
            try:
                partitions = tuple(draft[index] for index in range(len(draft)))
            except KeyError as gap:
                raise ImpossibleRecord(f"topic {topic.name} has {len(draft)} partitions but no {gap}") from None
            finished = TopicImage(topic.name, topic_id, partitions)
            self._own_topics()[topic.name] = finished
            self._topics_by_id[topic_id] = finished

    def _finish_configs(self) -> Mapping[Resource, Mapping[str, str]]:
        return _merged(self._image.configs, self._configs)

    def _finish_client_quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return _merged(self._image.client_quotas, self._client_quotas)

    # Copy on write

    def _own_topics(self) -> dict[str, TopicImage]:
        if self._topics is None:
            self._topics = dict(self._image.topics)
            self._topics_by_id = dict(self._image.topics_by_id)
        return self._topics

    def _own_brokers(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self._image.brokers)
        return self._brokers

    def _own_features(self) -> dict[str, int]:
        if self._features is None:
            self._features = dict(self._image.features)
        return self._features

    def _own_configs(self, resource: Resource) -> dict[str, str]:
        if resource not in self._configs:
            self._configs[resource] = dict(self._image.configs.get(resource, {}))
        return self._configs[resource]

    def _draft(self, topic_id: TopicId) -> dict[int, PartitionImage]:
        draft = self._drafts.get(topic_id)
        if draft is None:
            self._own_topics()
            topic = self._topics_by_id.get(topic_id)
            if topic is None:
                raise ImpossibleRecord(f"a partition of topic id {topic_id.hex()}, which is unknown")
            draft = self._drafts[topic_id] = dict(enumerate(topic.partitions))
        return draft

    # One method per record type

    def _apply_topic(self, record: messages.TopicRecord) -> None:
        topics, topic_id = self._own_topics(), TopicId(record.topic_id)
        if record.name in topics or topic_id in self._topics_by_id:
            raise ImpossibleRecord(f"topic {record.name} with id {topic_id.hex()} exists already")
        topics[record.name] = self._topics_by_id[topic_id] = TopicImage(record.name, topic_id)
        self._created.add(topic_id)

    def _apply_remove_topic(self, record: messages.RemoveTopicRecord) -> None:
        topics, topic_id = self._own_topics(), TopicId(record.topic_id)
        topic = self._topics_by_id.pop(topic_id, None)
        if topic is None:
            raise ImpossibleRecord(f"the removal of topic id {topic_id.hex()}, which does not exist")
        del topics[topic.name]
        self._drafts.pop(topic_id, None)
        self._changed.pop(topic_id, None)
        if topic_id in self._created:
            self._created.remove(topic_id)
        else:
            self._removed[topic_id] = topic
        self._remove_configs(Resource(ResourceType.TOPIC, topic.name))

    def _remove_configs(self, resource: Resource) -> None:
        configs = self._own_configs(resource)
        if configs:
            configs.clear()
            self._changed_configs.add(resource)

    def _apply_partition(self, record: messages.PartitionRecord) -> None:
        topic_id = TopicId(record.topic_id)
        self._draft(topic_id)[record.partition_id] = PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(record.directories or ()),
            removing_replicas=tuple(record.removing_replicas or ()),
            adding_replicas=tuple(record.adding_replicas or ()),
            leader_recovery_state=record.leader_recovery_state,
            eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
        )
        self._changed.setdefault(topic_id, set()).add(record.partition_id)

    def _apply_partition_change(self, record: messages.PartitionChangeRecord) -> None:
        topic_id, index = TopicId(record.topic_id), record.partition_id
        draft = self._draft(topic_id)
        if index not in draft:
            raise ImpossibleRecord(f"a change of partition {index} of topic id {topic_id.hex()}, which does not exist")
        draft[index] = changed_partition(draft[index], record)
        self._changed.setdefault(topic_id, set()).add(index)

    def _apply_clear_elr(self, record: messages.ClearElrRecord) -> None:
        """For one topic, or for all without a name."""
        topics = self._own_topics()
        if record.topic_name and record.topic_name not in topics:
            raise ImpossibleRecord(f"eligible replicas of topic {record.topic_name}, which does not exist")
        for name in [record.topic_name] if record.topic_name else list(topics):
            topic_id = topics[name].topic_id
            for index, partition in list(self._partitions(topic_id)):
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    self._apply_partition_change(
                        messages.PartitionChangeRecord(
                            partition_id=index, topic_id=topic_id, eligible_leader_replicas=[], last_known_elr=[]
                        )
                    )

    def _partitions(self, topic_id: TopicId) -> Iterable[tuple[int, PartitionImage]]:
        draft = self._drafts.get(topic_id)
        return draft.items() if draft is not None else enumerate(self._topics_by_id[topic_id].partitions)

    def _apply_config(self, record: messages.ConfigRecord) -> None:
        resource = Resource(record.resource_type, record.resource_name)
        configs = self._own_configs(resource)
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        self._changed_configs.add(resource)

    def _apply_client_quota(self, record: messages.ClientQuotaRecord) -> None:
        entity = quota_entity((each.entity_type, each.entity_name) for each in record.entity)
        quotas = self._client_quotas.get(entity)
        if quotas is None:
            quotas = self._client_quotas[entity] = dict(self._image.client_quotas.get(entity, {}))
        if record.remove:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = record.value

    def _apply_register_broker(self, record: messages.RegisterBrokerRecord) -> None:
        self._own_brokers()[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=_listeners(record),
            features=_features(record),
            rack=record.rack,
            is_fenced=record.fenced,
            is_shutting_down=record.in_controlled_shutdown,
            directories=tuple(record.log_dirs or ()),
        )
        self._changed_brokers.add(record.broker_id)

    def _apply_register_controller(self, record: messages.RegisterControllerRecord) -> None:
        if self._controllers is None:
            self._controllers = dict(self._image.controllers)
        self._controllers[record.controller_id] = ControllerImage(
            record.controller_id, record.incarnation_id, _listeners(record), _features(record)
        )

    def _apply_unregister_broker(self, record: messages.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        del self._own_brokers()[record.broker_id]
        self._changed_brokers.add(record.broker_id)

    def _apply_registration_change(self, record: messages.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = replace(broker, is_fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            broker = replace(broker, is_shutting_down=record.in_controlled_shutdown > 0)
        if record.log_dirs:
            broker = replace(broker, directories=tuple(record.log_dirs))
        self._put_broker(broker)

    def _apply_fence_broker(self, record: messages.FenceBrokerRecord) -> None:
        self._put_broker(replace(self._broker(record.id, record.epoch), is_fenced=True))

    def _apply_unfence_broker(self, record: messages.UnfenceBrokerRecord) -> None:
        self._put_broker(replace(self._broker(record.id, record.epoch), is_fenced=False))

    def _broker(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self._own_brokers().get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise ImpossibleRecord(f"a change of broker {broker_id} with epoch {epoch}, which is not registered")
        return broker

    def _put_broker(self, broker: BrokerImage) -> None:
        self._own_brokers()[broker.broker_id] = broker
        self._changed_brokers.add(broker.broker_id)

    def _apply_feature_level(self, record: messages.FeatureLevelRecord) -> None:
        if record.name == METADATA_VERSION_FEATURE and record.feature_level > METADATA_VERSION_HIGHEST:
            raise ImpossibleRecord(
                f"this cluster's {METADATA_VERSION_FEATURE} is {record.feature_level}, and this version supports "
                f"levels up to {METADATA_VERSION_HIGHEST}: upgrade the software to run it"
            )
        features = self._own_features()
        if record.feature_level == 0:
            features.pop(record.name, None)
        else:
            features[record.name] = record.feature_level

    def _apply_producer_ids(self, record: messages.ProducerIdsRecord) -> None:
        if record.next_producer_id < self._next_producer_id:
            raise ImpossibleRecord(f"producer ids go back from {self._next_producer_id} to {record.next_producer_id}")
        self._next_producer_id = record.next_producer_id

    def _apply_scram_credential(self, record: messages.UserScramCredentialRecord) -> None:
        self._scram_credentials.own()[ScramUser(record.name, record.mechanism)] = credential_of_record(record)

    def _apply_remove_scram_credential(self, record: messages.RemoveUserScramCredentialRecord) -> None:
        if self._scram_credentials.own().pop(ScramUser(record.name, record.mechanism), None) is None:
            raise ImpossibleRecord(f"the removal of a SCRAM credential of {record.name}, which does not exist")

    def _apply_delegation_token(self, record: messages.DelegationTokenRecord) -> None:
        self._delegation_tokens.own()[record.token_id] = token_of_record(record)

    def _apply_remove_delegation_token(self, record: messages.RemoveDelegationTokenRecord) -> None:
        self._delegation_tokens.own().pop(record.token_id, None)  # it may have expired twice, as in Kafka

    def _apply_acl(self, record: messages.AccessControlEntryRecord) -> None:
        self._acls.own()[bytes(record.id)] = acl_of(record)

    def _apply_remove_acl(self, record: messages.RemoveAccessControlEntryRecord) -> None:
        if self._acls.own().pop(bytes(record.id), None) is None:
            raise ImpossibleRecord(f"the removal of ACL {bytes(record.id).hex()}, which does not exist")

    def _begin_transaction(self, record: messages.BeginTransactionRecord) -> None:
        if self._transaction is not None:
            raise ImpossibleRecord(f"transaction {record.name} begins inside another")
        self._transaction = []

    def _end_transaction(self, record: messages.EndTransactionRecord | messages.AbortTransactionRecord) -> None:
        if self._transaction is None:
            raise ImpossibleRecord("a transaction ends without a begin")
        held, self._transaction = self._transaction, None
        if isinstance(record, messages.EndTransactionRecord):
            for each, offset in held:
                self.apply(each, offset)

    def _apply_epoch(self, record: EpochBegan) -> None:
        self._epoch = record.epoch

    def _apply_nothing(self, record: messages.NoOpRecord | messages.ZkMigrationStateRecord) -> None:
        """The record only advances the offset."""


def _merged(
    old: Mapping[KeyT, Mapping[str, ValueT]], new: Mapping[KeyT, Mapping[str, ValueT]]
) -> Mapping[KeyT, Mapping[str, ValueT]]:
    """The old values with the new ones in their place. Looks at the new ones only; a copy costs little."""
    if not new:
        return old
    merged = dict(old)
    for key, values in new.items():
        if values:
            merged[key] = values
        else:
            merged.pop(key, None)
    return merged


def changed_partition(partition: PartitionImage, record: messages.PartitionChangeRecord) -> PartitionImage:
    """Return a partition after a change record, in which each field may be unset."""
    has_new_leader = record.leader != NO_LEADER_CHANGE
    return PartitionImage(
        replicas=_if_set(record.replicas, partition.replicas),
        isr=_if_set(record.isr, partition.isr),
        leader=record.leader if has_new_leader else partition.leader,
        leader_epoch=partition.leader_epoch + 1 if has_new_leader else partition.leader_epoch,
        partition_epoch=partition.partition_epoch + 1,
        directories=_if_set(record.directories, partition.directories),
        removing_replicas=_if_set(record.removing_replicas, partition.removing_replicas),
        adding_replicas=_if_set(record.adding_replicas, partition.adding_replicas),
        leader_recovery_state=(
            partition.leader_recovery_state
            if record.leader_recovery_state == NO_RECOVERY_CHANGE
            else record.leader_recovery_state
        ),
        eligible_leader_replicas=_if_set(record.eligible_leader_replicas, partition.eligible_leader_replicas),
        last_known_elr=_if_set(record.last_known_elr, partition.last_known_elr),
    )


def _listeners(
    record: messages.RegisterBrokerRecord | messages.RegisterControllerRecord,
) -> tuple[ListenerImage, ...]:
    return tuple(
        ListenerImage(each.name, Address(each.host, each.port), each.security_protocol) for each in record.end_points
    )


def _features(
    record: messages.RegisterBrokerRecord | messages.RegisterControllerRecord,
) -> dict[str, VersionRange]:
    return {each.name: VersionRange(each.min_supported_version, each.max_supported_version) for each in record.features}


def _if_set(new: Any, old: tuple[Any, ...]) -> tuple[Any, ...]:
    return old if new is None else tuple(new)


# Records of a transaction itself, or of the quorum instead of a decision.
_PASSES: Final = (
    messages.BeginTransactionRecord,
    messages.EndTransactionRecord,
    messages.AbortTransactionRecord,
    EpochBegan,
)

_APPLY: Final[dict[type, Callable[[ImageBuilder, Any], None]]] = {
    messages.AbortTransactionRecord: ImageBuilder._end_transaction,
    messages.AccessControlEntryRecord: ImageBuilder._apply_acl,
    messages.BeginTransactionRecord: ImageBuilder._begin_transaction,
    messages.BrokerRegistrationChangeRecord: ImageBuilder._apply_registration_change,
    messages.ClearElrRecord: ImageBuilder._apply_clear_elr,
    messages.ClientQuotaRecord: ImageBuilder._apply_client_quota,
    messages.ConfigRecord: ImageBuilder._apply_config,
    messages.DelegationTokenRecord: ImageBuilder._apply_delegation_token,
    messages.EndTransactionRecord: ImageBuilder._end_transaction,
    messages.FeatureLevelRecord: ImageBuilder._apply_feature_level,
    messages.FenceBrokerRecord: ImageBuilder._apply_fence_broker,
    messages.NoOpRecord: ImageBuilder._apply_nothing,
    messages.PartitionChangeRecord: ImageBuilder._apply_partition_change,
    messages.PartitionRecord: ImageBuilder._apply_partition,
    messages.ProducerIdsRecord: ImageBuilder._apply_producer_ids,
    messages.RegisterBrokerRecord: ImageBuilder._apply_register_broker,
    messages.RegisterControllerRecord: ImageBuilder._apply_register_controller,
    messages.RemoveDelegationTokenRecord: ImageBuilder._apply_remove_delegation_token,
    messages.RemoveAccessControlEntryRecord: ImageBuilder._apply_remove_acl,
    messages.RemoveTopicRecord: ImageBuilder._apply_remove_topic,
    messages.RemoveUserScramCredentialRecord: ImageBuilder._apply_remove_scram_credential,
    messages.TopicRecord: ImageBuilder._apply_topic,
    messages.UnfenceBrokerRecord: ImageBuilder._apply_unfence_broker,
    messages.UnregisterBrokerRecord: ImageBuilder._apply_unregister_broker,
    messages.UserScramCredentialRecord: ImageBuilder._apply_scram_credential,
    messages.ZkMigrationStateRecord: ImageBuilder._apply_nothing,
    EpochBegan: ImageBuilder._apply_epoch,
}
