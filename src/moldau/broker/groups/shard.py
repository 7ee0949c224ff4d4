"""One partition of the offsets topic that this node leads, and the machine that decides for its groups."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from moldau.broker.drivers.partition_log import PartitionLog
from moldau.broker.drivers.replicated import Refusals, ReplicatedDriver
from moldau.broker.groups import patterns
from moldau.broker.groups.coding import GroupCoding
from moldau.broker.partitions.partition import Partition, TransactionEnding
from moldau.machines.decision import Decision, answered
from moldau.machines.groups.draft import Now
from moldau.machines.groups.machine import GroupsMachine
from moldau.machines.groups.records import Record, TransactionEnded
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    RequestTimedOut,
)
from moldau.model.ids import TopicPartition
from moldau.records.compression import Compression
from moldau.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

logger = logging.getLogger(__name__)


class Shard:
    """What handlers ask about groups goes through `write` and `read`; both raise while the shard is loading."""

    def __init__(
        self, partition: Partition, broker: "Broker", on_failure: Callable[[str, BaseException], None]
    ) -> None:
        self._broker = broker
        self._partition = partition
        coding = GroupCoding()
        self._log: PartitionLog[Record] = PartitionLog(
            partition,
            coding,
            broker.clock,
            broker.executor,
            Compression(broker.settings.offsets_topic_compression_codec),
            read_bytes=broker.settings.offsets_load_buffer_size,
            batches=coding,
        )
        self._driver = ReplicatedDriver(
            self._log,
            self._new_machine,
            broker.clock,
            refusals=Refusals(lost=self._refusal),
            failed=lambda error: on_failure(f"{partition.name} cannot look after its groups", error),
        )
        self.write = self._driver.write
        self.read = self._driver.read
        self.decide_now = self._driver.decide_now
        self.new_ticket = self._driver.new_ticket
        self._awaits_load = False
        self.leader_epoch = partition.leader_epoch  # the last one that it has heard of
        self._gone_topics: dict[str, None] = {}  # deleted while the shard was not ready to hear it

    @property
    def partition(self) -> Partition:
        return self._partition

    @property
    def name(self) -> TopicPartition:
        return self._partition.name

    @property
    def is_ready(self) -> bool:
        return self._driver.is_leading

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to load."""
        return self._partition.log.end_offset == self._partition.log.start_offset

    @property
    def now(self) -> Now:
        return Now(self._broker.clock.monotonic_ms(), self._broker.clock.wall_ms())

    async def commit(self, decide: Callable[[GroupsMachine], Decision[Record, Any]]) -> Any:
        """As `write`, but where replicas are too few or too slow, the client hears so and tries again."""
        leading = self._partition.leading
        if leading is None:
            return await self.write(decide)
        if leading.machine.is_under_min_isr:
            raise CoordinatorNotAvailable(f"Too few replicas of {self.name} are in sync.")
        try:
            return await self.write(decide, timeout_ms=self._broker.settings.offsets_commit_timeout_ms)
        except RequestTimedOut:
            raise CoordinatorNotAvailable(f"The replicas of {self.name} are too slow.") from None

    async def commit_in_transaction(self, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        """Note offsets that count once the producer's transaction is committed; it must be open here, or admitted."""
        producers = self._partition.log.producers

        def decide(machine: GroupsMachine) -> Decision[Record, TxnOffsetCommitResponse]:
            producers.check_begun(request.producer_id, request.producer_epoch)
            return machine.decide_commit_in_transaction(request, now=self.now)

        self._driver.flush()  # so that the log knows of every transaction that was ended before
        response: TxnOffsetCommitResponse = await self.commit(decide)
        return response

    async def end_transaction(self, ending: TransactionEnding) -> None:
        """Write the marker of a transaction, unless it is there: what the transaction had pending is settled."""
        producer_id, epoch, coordinator_epoch, is_commit, version = ending
        self._driver.flush()
        if self._partition.log.producers.check_end(producer_id, epoch, coordinator_epoch, version):
            ended = TransactionEnded(producer_id, epoch, coordinator_epoch, is_commit)
            await self.commit(lambda machine: machine.decide_end_transaction(ended))
        else:
            await self.commit(lambda _: answered(None))  # what was written before may not be committed yet
        self._partition.forget_ends()

    def _new_machine(self) -> GroupsMachine:
        now = self.now
        return GroupsMachine(
            self._broker.settings,
            wall_ahead_ms=now.wall_ms - now.ms,
            image=lambda: self._broker.image,
            matcher=patterns,
        )

    def _refusal(self) -> KafkaError:
        if self._awaits_load:
            return CoordinatorLoadInProgress("The group is being loaded; try again.")
        return NotCoordinator("This broker does not coordinate the group.")

    def expect_load(self) -> None:
        """It will be loaded soon: whoever asks meanwhile is told so."""
        self._awaits_load = True

    async def load(self) -> None:
        """Replay the log, then speak for it."""
        began_ms = self._broker.clock.monotonic_ms()
        await self._driver.lead()
        self._awaits_load = False
        if self._driver.is_leading:
            took_ms = self._broker.clock.monotonic_ms() - began_ms
            logger.debug("%s: groups are loaded in %.0f ms", self.name, took_ms)
            await self.topics_deleted(())

    async def topics_deleted(self, names: Iterable[str]) -> None:
        """What was committed for them goes, now or as soon as the shard is loaded."""
        self._gone_topics.update(dict.fromkeys(names))
        if not self._gone_topics or not self.is_ready:
            return
        gone, self._gone_topics = list(self._gone_topics), {}
        try:
            await self.write(lambda machine: machine.decide_topics_deleted(gone, now=self.now))
        except KafkaError as error:  # whoever leads the shard next hears of it, or the offsets expire
            logger.warning("%s: offsets of deleted topics are kept for now: %s", self.name, error)

    def resign(self) -> None:
        """Another node leads the partition, or it is gone."""
        self._awaits_load = False
        self._driver.resign()
        self._log.close()

    async def close(self) -> None:
        """The node stops: what was decided is written first."""
        await self._driver.close()
        self._log.close()
