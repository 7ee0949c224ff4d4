"""Metadata machine of the active controller. Requests decide, only records change the image."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from moldau.machines.access.acls import AclBinding, AclFilter
from moldau.machines.access.scram import ScramUser
from moldau.machines.decision import Decision, Response, respond
from moldau.machines.metadata import (
    acls,
    alter_partition,
    brokers,
    client_quotas,
    configs,
    controllers,
    credentials,
    delegation_tokens,
    elect_leaders,
    features,
    heartbeats,
    leader_configs,
    partitions,
    producer_ids,
    reassignments,
    replica_dirs,
    topics,
)
from moldau.machines.metadata.builder import ImageBuilder
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.delta import MetadataDelta, delta_between
from moldau.machines.metadata.image import ControllerImage, DelegationToken, MetadataImage, VersionRange
from moldau.machines.metadata.mutation_quota import UNLIMITED, MutationQuota
from moldau.machines.metadata.partition_index import PartitionIndex
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.sessions import SessionEnded, Sessions
from moldau.machines.metadata.settings import (
    CONFIG_CHARACTERS_PER_DECISION_MAX,
    RECORDS_PER_DECISION_MAX,
    MetadataSettings,
)
from moldau.model.errors import PolicyViolation
from moldau.wire import messages


class MetadataMachine:
    """Decisions are functions of the image; `apply` produces the next one."""

    def __init__(
        self,
        settings: MetadataSettings,
        rules: configs.ConfigRules,
        image: MetadataImage | None = None,
        bootstrap: Sequence[Record] = (),
    ) -> None:
        """`image` is the initial state: a node that followed the log need not replay it to become active.

        `bootstrap` are the records of the formatted directory, with which the log of a new cluster begins.
        """
        self._bootstrap = bootstrap
        self.settings = settings  # may be replaced at run time; not replicated
        self._rules = rules
        self._image = image or MetadataImage()
        self._builder = ImageBuilder(self._image)
        self._delta = MetadataDelta()
        self._index = PartitionIndex()
        if image is not None:
            self._index.follow(MetadataImage(), image, delta_between(MetadataImage(), image))
        self._sessions = Sessions()  # soft state

    def apply(self, record: Record, offset: int) -> None:
        self._builder.apply(record, offset)

    @property
    def image(self) -> MetadataImage:
        """The image of everything applied, committed or not."""
        if self._builder.is_touched:
            old = self._image
            self._image, delta = self._builder.finish()
            self._index.follow(old, self._image, delta)
            self._delta = self._delta.then(delta)
        return self._image

    @property
    def _view(self) -> ClusterView:
        return ClusterView(self.image, self._index, self.settings)

    def take_change(self) -> tuple[MetadataImage, MetadataDelta]:
        """Return the image and the changes since the last call."""
        image, delta = self.image, self._delta
        self._delta = MetadataDelta()
        return image, delta

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        """A log without features belongs to a new cluster. Every broker gets a full session."""
        image = self.image
        unfenced = [(broker.broker_id, broker.epoch) for broker in image.brokers.values() if not broker.is_fenced]
        timers = self._sessions.grant(unfenced, now_ms, self.settings.broker_session_timeout_ms)
        timers += brokers.resume_broker_changes(self._view)
        timers.append(elect_leaders.check_timer(self._view))
        first = () if image.features else [*features.bootstrap_records(self.settings), *self._bootstrap]
        return respond(None, first, timers)

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        match event:
            case SessionEnded():
                return heartbeats.decide_session_ended(self._view, self._sessions, event, now_ms)
            case brokers.BrokerChangeContinued():
                return brokers.decide_broker_change_continued(self._view, event.broker_id)
            case elect_leaders.LeadersChecked():
                return elect_leaders.decide_leaders_checked(self._view)
            case _:
                raise AssertionError(f"unknown timer {event} at {now_ms}")

    def decide_create_topics(
        self,
        wanted: Sequence[topics.NewTopic],
        *,
        randomness: Sequence[bytes],
        start: int,
        validate_only: bool = False,
        quota: MutationQuota = UNLIMITED,
    ) -> Decision[Record, list[topics.TopicCreated]]:
        return _bounded(
            topics.decide_create_topics(
                self.image,
                self.settings,
                self._rules,
                wanted,
                randomness=randomness,
                start=start,
                validate_only=validate_only,
                quota=quota,
            )
        )

    def decide_delete_topics(
        self, unwanted: Sequence[topics.TopicReference], *, quota: MutationQuota = UNLIMITED
    ) -> Decision[Record, list[topics.TopicDeleted]]:
        return _bounded(topics.decide_delete_topics(self.image, self.settings, unwanted, quota=quota))

    def decide_create_partitions(
        self,
        wanted: Sequence[partitions.MorePartitions],
        *,
        start: int,
        validate_only: bool = False,
        quota: MutationQuota = UNLIMITED,
    ) -> Decision[Record, list[partitions.PartitionsCreated]]:
        return _bounded(
            partitions.decide_create_partitions(
                self.image, wanted, start=start, validate_only=validate_only, quota=quota
            )
        )

    def decide_alter_configs(
        self, replacements: Sequence[configs.Replacement], *, validate_only: bool = False
    ) -> Decision[Record, list[configs.ConfigsAltered]]:
        return self._with_partitions(
            configs.decide_alter_configs(self.image, self._rules, replacements, validate_only=validate_only)
        )

    def decide_incremental_alter_configs(
        self, alterations: Sequence[configs.Alteration], *, validate_only: bool = False
    ) -> Decision[Record, list[configs.ConfigsAltered]]:
        return self._with_partitions(
            configs.decide_incremental_alter_configs(self.image, self._rules, alterations, validate_only=validate_only)
        )

    def _with_partitions(self, decision: Decision[Record, Response]) -> Decision[Record, Response]:
        """Add the partition changes that follow from config changes to the decision. Their number is unbounded."""
        changes = leader_configs.partition_changes(self._view, _bounded(decision).records)
        if not changes:
            return decision
        timers = [*decision.timers, *elect_leaders.next_check(len(changes))]
        return replace(decision, records=[*decision.records, *changes], timers=timers)

    def decide_register_broker(self, registration: brokers.Registration, *, next_offset: int) -> Decision[Record, int]:
        return brokers.decide_register_broker(self._view, self._sessions, registration, next_offset=next_offset)

    def decide_broker_heartbeat(
        self, heartbeat: heartbeats.BrokerHeartbeat, now_ms: float
    ) -> Decision[Record, heartbeats.HeartbeatResult]:
        return heartbeats.decide_broker_heartbeat(self._view, self._sessions, heartbeat, now_ms)

    def decide_unfence_broker(self, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
        return brokers.decide_unfence_broker(self._view, broker_id, broker_epoch)

    def decide_fence_broker(self, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
        return brokers.decide_fence_broker(self._view, self._sessions, broker_id, broker_epoch)

    def decide_unregister_broker(self, broker_id: int) -> Decision[Record, None]:
        return brokers.decide_unregister_broker(self._view, self._sessions, broker_id)

    def decide_alter_partition(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[alter_partition.IsrProposal]
    ) -> Decision[Record, list[alter_partition.IsrResult]]:
        return alter_partition.decide_alter_partition(self._view, broker_id, broker_epoch, proposals)

    def decide_assign_replicas_to_dirs(
        self, broker_id: int, broker_epoch: int, placed: Sequence[replica_dirs.ReplicaDirAssignment]
    ) -> Decision[Record, list[replica_dirs.ReplicaDirResult]]:
        return replica_dirs.decide_assign_replicas_to_dirs(self._view, broker_id, broker_epoch, placed)

    def decide_alter_reassignments(
        self, wanted: Sequence[reassignments.Reassignment], *, may_change_factor: bool = True
    ) -> Decision[Record, list[reassignments.Reassigned]]:
        return reassignments.decide_alter_reassignments(self._view, wanted, may_change_factor=may_change_factor)

    def reassignments(self, wanted: Sequence[tuple[str, int]] | None) -> list[reassignments.Move]:
        """Return the reassignments in progress, of all or of the given partitions."""
        return list(reassignments.moves(self._view, wanted))

    def decide_elect_leaders(
        self, election_type: int, wanted: Sequence[tuple[str, int]] | None
    ) -> Decision[Record, list[elect_leaders.LeaderElected]]:
        return _bounded(elect_leaders.decide_elect_leaders(self._view, election_type, wanted))

    def decide_alter_client_quotas(
        self, alterations: Sequence[client_quotas.QuotaAlteration], *, validate_only: bool = False
    ) -> Decision[Record, list[client_quotas.QuotaAltered]]:
        return _bounded(client_quotas.decide_alter_client_quotas(self.image, alterations, validate_only=validate_only))

    def decide_register_controller(self, controller: ControllerImage) -> Decision[Record, None]:
        return controllers.decide_register_controller(self.image, controller)

    def decide_allocate_producer_ids(
        self, broker_id: int, broker_epoch: int
    ) -> Decision[Record, producer_ids.ProducerIdBlock]:
        return producer_ids.decide_allocate_producer_ids(self.image, broker_id, broker_epoch)

    def decide_alter_credentials(
        self, deletions: Sequence[ScramUser], upsertions: Sequence[credentials.NewCredential]
    ) -> Decision[Record, list[credentials.CredentialAltered]]:
        return _bounded(credentials.decide_alter_credentials(self.image, deletions, upsertions))

    def decide_create_acls(
        self, wanted: Sequence[AclBinding], *, randomness: Sequence[bytes]
    ) -> Decision[Record, list[acls.AclCreated]]:
        return _bounded(acls.decide_create_acls(self.image, wanted, randomness=randomness))

    def decide_delete_acls(self, filters: Sequence[AclFilter]) -> Decision[Record, list[acls.AclsDeleted]]:
        return _bounded(acls.decide_delete_acls(self.image, filters))

    def decide_create_token(
        self, wanted: delegation_tokens.NewToken, limits: delegation_tokens.TokenLimits, now_ms: int
    ) -> Decision[Record, DelegationToken]:
        return delegation_tokens.decide_create_token(wanted, limits, now_ms)

    def decide_renew_token(
        self,
        token_id: str | None,
        principal: str,
        period_ms: int,
        limits: delegation_tokens.TokenLimits,
        now_ms: int,
    ) -> Decision[Record, int]:
        return delegation_tokens.decide_renew_token(self.image, token_id, principal, period_ms, limits, now_ms)

    def decide_expire_token(
        self, token_id: str | None, principal: str, period_ms: int, now_ms: int
    ) -> Decision[Record, int]:
        return delegation_tokens.decide_expire_token(self.image, token_id, principal, period_ms, now_ms)

    def decide_remove_expired_tokens(self, now_ms: int) -> Decision[Record, None]:
        return delegation_tokens.decide_remove_expired_tokens(self.image, now_ms)

    def decide_update_features(
        self,
        updates: Sequence[features.FeatureUpdate],
        *,
        validate_only: bool = False,
        supported: Mapping[str, VersionRange] = features.SUPPORTED_FEATURES,
    ) -> Decision[Record, list[features.FeatureUpdated]]:
        return features.decide_update_features(self._view, updates, supported=supported, validate_only=validate_only)


def _bounded(decision: Decision[Record, Response]) -> Decision[Record, Response]:
    """Limit the size of a request."""
    if len(decision.records) > RECORDS_PER_DECISION_MAX or _characters(decision) > CONFIG_CHARACTERS_PER_DECISION_MAX:
        raise PolicyViolation("Unable to perform excessively large batch operation.")
    return decision


def _characters(decision: Decision[Record, Response]) -> int:
    """Return the total length of client-provided strings."""
    return sum(_record_characters(record) for record in decision.records)


def _record_characters(record: Record) -> int:
    match record:
        case messages.ConfigRecord():
            return len(record.name) + len(record.value or "")
        case messages.ClientQuotaRecord():
            return sum(len(each.entity_name or "") for each in record.entity)
        case messages.AccessControlEntryRecord():
            return len(record.resource_name) + len(record.principal) + len(record.host)
        case _:
            return 0
