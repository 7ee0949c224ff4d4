"""One partition of the offsets topic that this node leads, and the machine that decides for its groups."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.coordinators.shard import CoordinatingShard
from moldau.broker.groups import patterns
from moldau.broker.groups.record_serde import GroupCoding
from moldau.broker.partitions.partition import Partition, TransactionEnding
from moldau.machines.decision import Decision, respond
from moldau.machines.groups.deleted_topics import DeletedTopic
from moldau.machines.groups.machine import GroupsMachine
from moldau.machines.groups.records import Record, TransactionEnded
from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicId
from moldau.records.compression import Compression
from moldau.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

logger = logging.getLogger(__name__)

LOADING_S: Final = 0.5  # between two looks whether the shard is loaded
REFUSED_S: Final = 5.0  # after its log could not be written; each attempt makes it load anew


class Shard(CoordinatingShard[GroupsMachine, Record]):
    """What handlers ask about groups goes through `write` and `read`; both raise while the shard is loading."""

    def __init__(
        self,
        partition: Partition,
        broker: CoordinatorHost,
        newest_image: Callable[[], MetadataImage | None],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._newest_image = newest_image
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
        )
        self.write = self._driver.write
        self.decide_now = self._driver.decide_now
        self.new_ticket = self._driver.new_ticket
        self._gone_topics: dict[TopicId, DeletedTopic] = {}  # of which not all offsets are known to be forgotten

    @property
    def partition(self) -> Partition:
        return self._partition

    async def commit_in_transaction(self, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        """Note offsets that count once the producer's transaction is committed; it must be open here, or admitted."""
        producers = self._partition.log.producers

        def decide(machine: GroupsMachine) -> Decision[Record, TxnOffsetCommitResponse]:
            producers.check_in_transaction(request.producer_id, request.producer_epoch)
            return machine.decide_commit_in_transaction(request, now=self.now)

        self._driver.flush()  # so that the log knows of every transaction that was ended before
        # Another request may take the admission away in this very turn: the log looks at it again when it is written.
        response: TxnOffsetCommitResponse = await self.commit(decide, is_written_at_once=True)
        return response

    async def end_transaction(self, ending: TransactionEnding) -> None:
        """Write the marker of a transaction, unless it is there: what the transaction had pending is settled."""
        producer_id, epoch, coordinator_epoch, is_commit, version = ending
        self._driver.flush()
        if self._partition.log.producers.check_end(producer_id, epoch, coordinator_epoch, version):
            ended = TransactionEnded(producer_id, epoch, coordinator_epoch, is_commit)
            await self.commit(lambda machine: machine.decide_end_transaction(ended))
        else:
            await self.commit(lambda _: respond(None))  # what was written before may not be committed yet
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

    # Topics that are gone

    async def metadata_known(self) -> None:
        """What was loaded before it was sure which topics there are is compared with them."""
        with suppress(KafkaError):  # a machine that is not ready does so when it is
            await self.write(lambda machine: machine.decide_metadata_loaded(now=self.now))

    async def topics_deleted(self, topics: Iterable[TopicImage]) -> None:
        """What was committed for them goes: now, or once the shard is loaded and its log can be written."""
        until_ms = self.now.wall_ms
        self._gone_topics.update({each.topic_id: DeletedTopic(each.topic_id, each.name, until_ms) for each in topics})
        while self._gone_topics:
            if not self.is_ready:
                await asyncio.sleep(LOADING_S)
            elif not await self._forget_some():
                await asyncio.sleep(REFUSED_S)

    async def _forget_some(self) -> bool:
        """Whether it could be written."""
        gone = list(self._gone_topics.values())
        try:
            is_all = await self.commit(lambda machine: machine.decide_topics_deleted(gone, now=self.now))
        except KafkaError as error:
            logger.warning("%s: offsets of deleted topics are kept for now: %s", self.name, error)
            return False
        if is_all:
            for each in gone:
                self._gone_topics.pop(each.topic_id, None)
        return True

    def resign(self) -> None:
        self._gone_topics.clear()  # for whoever leads the shard next to find out
        super().resign()
