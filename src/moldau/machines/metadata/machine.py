"""The metadata machine: what the cluster consists of, decided by requests, changed by records alone."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from moldau.machines.decision import Decision, Response, respond
from moldau.machines.metadata import (
    alter_partition,
    brokers,
    configs,
    controllers,
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
from moldau.machines.metadata.image import ControllerImage, MetadataImage
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
    """Decisions are functions of the image; `apply` leads to the next one."""

    def __init__(
        self, settings: MetadataSettings, rules: configs.ConfigRules, image: MetadataImage | None = None
    ) -> None:
        """`image` is where it begins: a node that followed so far need not read the whole log again to lead."""
        self.settings = settings  # may be replaced while running: it is no replicated state
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
        """Everything that was applied, committed or not."""
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
        """The image, and what changed since this was asked last."""
        image, delta = self.image, self._delta
        self._delta = MetadataDelta()
        return image, delta

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        """A log that holds no features yet belongs to a new cluster. Every broker has a session in full again."""
        image = self.image
        unfenced = [(broker.broker_id, broker.epoch) for broker in image.brokers.values() if not broker.is_fenced]
        timers = self._sessions.grant(unfenced, now_ms, self.settings.broker_session_timeout_ms)
        timers += brokers.unfinished_work(self._view)
        timers.append(elect_leaders.check_timer(self._view))
        return respond(None, () if image.features else features.bootstrap_records(self.settings), timers)

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        match event:
            case SessionEnded():
                return heartbeats.decide_session_ended(self._view, self._sessions, event, now_ms)
            case brokers.WorkMoved():
                return brokers.decide_work_moved(self._view, event.broker_id)
            case elect_leaders.LeadersChecked():
                return elect_leaders.decide_leaders_checked(self._view)
            case _:
                raise AssertionError(f"nobody set a timer for {event} at {now_ms}")

    def decide_create_topics(
        self,
        wanted: Sequence[topics.NewTopic],
        *,
        randomness: Sequence[bytes],
        start: int,
        validate_only: bool = False,
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
            )
        )

    def decide_delete_topics(
        self, unwanted: Sequence[topics.TopicReference]
    ) -> Decision[Record, list[topics.TopicDeleted]]:
        return _bounded(topics.decide_delete_topics(self.image, self.settings, unwanted))

    def decide_create_partitions(
        self, wanted: Sequence[partitions.MorePartitions], *, start: int, validate_only: bool = False
    ) -> Decision[Record, list[partitions.PartitionsCreated]]:
        return _bounded(
            partitions.decide_create_partitions(self.image, wanted, start=start, validate_only=validate_only)
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
        """The configs, and what they mean for partitions, in one piece. Of those there are as many as there are."""
        changes = leader_configs.partition_changes(self._view, _bounded(decision).records)
        if not changes:
            return decision
        timers = [*decision.timers, *elect_leaders.next_look(len(changes))]
        return replace(decision, records=[*decision.records, *changes], timers=timers)

    def decide_register_broker(self, registration: brokers.Registration, *, next_offset: int) -> Decision[Record, int]:
        return brokers.decide_register_broker(self._view, self._sessions, registration, next_offset=next_offset)

    def decide_broker_heartbeat(
        self, heartbeat: heartbeats.BrokerHeartbeat, now_ms: float
    ) -> Decision[Record, heartbeats.HeartbeatAnswer]:
        return heartbeats.decide_broker_heartbeat(self._view, self._sessions, heartbeat, now_ms)

    def decide_unfence_broker(self, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
        return brokers.decide_unfence_broker(self._view, broker_id, broker_epoch)

    def decide_fence_broker(self, broker_id: int, broker_epoch: int) -> Decision[Record, None]:
        return brokers.decide_fence_broker(self._view, self._sessions, broker_id, broker_epoch)

    def decide_unregister_broker(self, broker_id: int) -> Decision[Record, None]:
        return brokers.decide_unregister_broker(self._view, self._sessions, broker_id)

    def decide_alter_partition(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[alter_partition.IsrProposal]
    ) -> Decision[Record, list[alter_partition.IsrAnswered]]:
        return alter_partition.decide_alter_partition(self._view, broker_id, broker_epoch, proposals)

    def decide_place_copies(
        self, broker_id: int, broker_epoch: int, placed: Sequence[replica_dirs.CopyPlaced]
    ) -> Decision[Record, list[replica_dirs.CopyNoted]]:
        return replica_dirs.decide_place_copies(self._view, broker_id, broker_epoch, placed)

    def decide_alter_reassignments(
        self, wanted: Sequence[reassignments.Reassignment], *, may_change_factor: bool = True
    ) -> Decision[Record, list[reassignments.Reassigned]]:
        return reassignments.decide_alter_reassignments(self._view, wanted, may_change_factor=may_change_factor)

    def reassignments(self, wanted: Sequence[tuple[str, int]] | None) -> list[reassignments.Move]:
        """The moves under way, of all partitions or of those named."""
        return list(reassignments.moves(self._view, wanted))

    def decide_elect_leaders(
        self, election_type: int, wanted: Sequence[tuple[str, int]] | None
    ) -> Decision[Record, list[elect_leaders.LeaderElected]]:
        return _bounded(elect_leaders.decide_elect_leaders(self._view, election_type, wanted))

    def decide_register_controller(self, controller: ControllerImage) -> Decision[Record, None]:
        return controllers.decide_register_controller(self.image, controller)

    def decide_allocate_producer_ids(
        self, broker_id: int, broker_epoch: int
    ) -> Decision[Record, producer_ids.ProducerIdBlock]:
        return producer_ids.decide_allocate_producer_ids(self.image, broker_id, broker_epoch)

    def decide_update_features(
        self, updates: Sequence[features.FeatureUpdate], *, validate_only: bool = False
    ) -> Decision[Record, list[features.FeatureUpdated]]:
        return features.decide_update_features(self._view, updates, validate_only=validate_only)


def _bounded(decision: Decision[Record, Response]) -> Decision[Record, Response]:
    """One request may not fill the log."""
    if len(decision.records) > RECORDS_PER_DECISION_MAX or _characters(decision) > CONFIG_CHARACTERS_PER_DECISION_MAX:
        raise PolicyViolation("Unable to perform excessively large batch operation.")
    return decision


def _characters(decision: Decision[Record, Response]) -> int:
    """How long the texts are that a client can make as long as it likes."""
    configs = (record for record in decision.records if isinstance(record, messages.ConfigRecord))
    return sum(len(record.name) + len(record.value or "") for record in configs)
