"""A shard of the group coordinator: a partition of `__consumer_offsets` and the machine on it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.coordinators.shard import CoordinatorShard
from moldau.broker.groups.record_serde import GroupCoding
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.transaction_end import TransactionEnding
from moldau.broker.runtime import patterns
from moldau.machines.decision import Decision, respond
from moldau.machines.groups.deleted_topics import DeletedTopic
from moldau.machines.groups.machine import GroupsMachine
from moldau.machines.groups.records import Record, TransactionEnded
from moldau.machines.groups.share.effects import InitializeStates
from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicId
from moldau.records.compression import Compression
from moldau.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

logger = logging.getLogger(__name__)

Response = TypeVar("Response")

LOAD_CHECK_S: Final = 0.5  # between checks whether the shard is loaded
WRITE_RETRY_S: Final = 5.0  # after a failed write; each attempt reloads the shard


class ShareStates(Protocol):
    """The durable states of share partitions, at their share coordinators."""

    async def initialize_all(
        self, group_id: str, state_epoch: int, partitions: Mapping[TopicId, frozenset[int]]
    ) -> Mapping[TopicId, frozenset[int]]:
        """Initialize the states of a group's share partitions; return those that succeeded."""
        ...


class Shard(CoordinatorShard[GroupsMachine, Record]):
    """Handlers use `write` and `read`; both raise while the shard is loading."""

    def __init__(
        self,
        partition: Partition,
        broker: CoordinatorHost,
        newest_image: Callable[[], MetadataImage | None],
        share_states: ShareStates,
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._newest_image = newest_image
        self._share_states = share_states
        self._initializations: set[asyncio.Task[None]] = set()
        coding = GroupCoding()
        log: PartitionLog[Record] = PartitionLog(
            partition,
            coding,
            broker.clock,
            broker.executor,
            Compression(broker.settings.offsets_topic_compression_codec),
            read_bytes=broker.settings.offsets_load_buffer_size,
            batches=coding,
        )
        super().__init__(
            partition,
            broker,
            log,
            self._new_machine,
            on_failure,
            kind="group",
            commit_ms_max=lambda: broker.settings.offsets_commit_timeout_ms,
            perform=self._perform,
        )
        self.write = self._driver.write
        self.decide_now = self._driver.decide_now
        self.new_ticket = self._driver.new_ticket
        self._deleted_topics: dict[TopicId, DeletedTopic] = {}  # deleted topics whose offsets may not all be deleted

    def unless_none(self, decision: Decision[Record, Response] | None) -> Decision[Record, Response]:
        """A heartbeat that changes nothing is accepted even while the shard cannot commit (below min ISR)."""
        if decision is None:
            raise self.not_committed_error()
        return decision

    @property
    def partition(self) -> Partition:
        return self._partition

    async def commit_in_transaction(self, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        """Write offsets that count once the producer's transaction is committed; it must be open or verified here."""
        producers = self._partition.log.producers

        def decide(machine: GroupsMachine) -> Decision[Record, TxnOffsetCommitResponse]:
            producers.check_in_transaction(request.producer_id, request.producer_epoch)
            return machine.decide_commit_in_transaction(request, now=self.now)

        self._driver.flush()  # so that the log knows of every transaction that was ended before
        # Another request may end the verification in this turn: the log checks it again at the write.
        response: TxnOffsetCommitResponse = await self.commit(decide, is_written_at_once=True)
        return response

    async def end_transaction(self, ending: TransactionEnding) -> None:
        """Write the marker of a transaction unless it exists, which settles the pending offsets."""
        producer_id, epoch, coordinator_epoch, is_commit, version = ending
        self._driver.flush()
        if self._partition.log.producers.check_end(producer_id, epoch, coordinator_epoch, version):
            ended = TransactionEnded(producer_id, epoch, coordinator_epoch, is_commit)
            await self.commit(lambda machine: machine.decide_end_transaction(ended))
        else:
            await self.commit(lambda _: respond(None))  # an earlier marker may not be committed yet
        self._partition.forget_ends()

    def _new_machine(self) -> GroupsMachine:
        now = self.now
        return GroupsMachine(
            self._broker.settings,
            wall_offset_ms=now.wall_ms - now.ms,
            image=lambda: self._broker.image,
            matcher=patterns,
            newest_image=self._newest_image,
        )

    # Share groups

    def _perform(self, effect: object) -> None:
        assert isinstance(effect, InitializeStates)
        task = asyncio.get_running_loop().create_task(self._initialize_states(effect))
        self._initializations.add(task)
        task.add_done_callback(self._initializations.discard)

    async def _initialize_states(self, effect: InitializeStates) -> None:
        """Have the share coordinators create states; a later heartbeat requests those that fail again."""
        group_id = effect.group_id
        done = await self._share_states.initialize_all(group_id, effect.state_epoch, effect.partitions)
        try:
            await self.commit(lambda machine: machine.decide_states_initialized(group_id, done, now=self.now))
        except KafkaError as error:
            logger.info("%s: initialized share partitions of %s are not committed: %s", self.name, group_id, error)

    def _cancel_initializations(self) -> None:
        for task in self._initializations:
            task.cancel()

    # Deleted topics

    async def metadata_known(self) -> None:
        """The metadata is complete: compare the topics of loaded offsets with it."""
        with suppress(KafkaError):  # a machine that is not ready does so after its load
            await self.write(lambda machine: machine.decide_metadata_loaded(now=self.now))

    async def topics_deleted(self, topics: Iterable[TopicImage]) -> None:
        """Delete the topics' offsets, retrying until the shard is loaded and its log is writable."""
        until_ms = self.now.wall_ms
        self._deleted_topics.update(
            {each.topic_id: DeletedTopic(each.topic_id, each.name, until_ms) for each in topics}
        )
        while self._deleted_topics:
            if not self.is_ready:
                await asyncio.sleep(LOAD_CHECK_S)
            elif not await self._delete_offsets():
                await asyncio.sleep(WRITE_RETRY_S)

    async def _delete_offsets(self) -> bool:
        """Delete one decision's worth of offsets; return whether the write succeeded."""
        deleted = list(self._deleted_topics.values())
        try:
            is_all = await self.commit(lambda machine: machine.decide_topics_deleted(deleted, now=self.now))
        except KafkaError as error:
            logger.warning("%s: deleting offsets of deleted topics failed, will retry: %s", self.name, error)
            return False
        if is_all:
            for each in deleted:
                self._deleted_topics.pop(each.topic_id, None)
        return True

    def resign(self) -> None:
        self._deleted_topics.clear()  # the next coordinator finds them when it loads the shard
        self._cancel_initializations()
        super().resign()

    async def close(self) -> None:
        self._cancel_initializations()
        await asyncio.gather(*self._initializations, return_exceptions=True)
        await super().close()
