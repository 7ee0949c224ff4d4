"""One partition of the state topic that this node leads, and the machine that decides for its transactions."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.broker.drivers.partition_log import PartitionLog
from moldau.broker.drivers.replicated import Refusals, ReplicatedDriver
from moldau.broker.partitions.partition import Partition
from moldau.broker.transactions.coding import TransactionCoding
from moldau.broker.transactions.markers import Markers
from moldau.machines.decision import Decision, Now
from moldau.machines.metadata.features import TRANSACTION_VERSION_FEATURE
from moldau.machines.transactions import (
    ProducerIdentity,
    ProducerIdNeeded,
    Record,
    SendMarkers,
    TransactionsMachine,
)
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    ProducerFenced,
    RequestTimedOut,
)
from moldau.model.ids import ProducerId, TopicPartition
from moldau.model.units import SECOND_MS

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

logger = logging.getLogger(__name__)

COMMIT_MS_MAX: Final = 5 * SECOND_MS  # less than the patience of clients and brokers: they hear why, and try again
BUSY_S: Final = 0.1
FINAL: Final = (ProducerFenced, InvalidProducerIdMapping, InvalidTxnState)  # after these a producer gives up

Answer = TypeVar("Answer")


class TransactionShard:
    """What handlers ask about transactions goes through `commit` and `read`; both raise while the shard is loading."""

    def __init__(
        self,
        partition: Partition,
        broker: "Broker",
        markers: Markers,
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._markers = markers
        self._log: PartitionLog[Record] = PartitionLog(
            partition,
            TransactionCoding(lambda: broker.image.features.get(TRANSACTION_VERSION_FEATURE, 0)),
            broker.clock,
            broker.executor,
            read_bytes=broker.settings.transaction_state_log_load_buffer_size,
        )
        self._driver: ReplicatedDriver[TransactionsMachine, Record] = ReplicatedDriver(
            self._log,
            self._new_machine,
            broker.clock,
            refusals=Refusals(lost=self._refusal),
            perform=self._perform,
            failed=lambda error: on_failure(f"{partition.name} cannot coordinate its transactions", error),
        )
        self.read = self._driver.read
        self._awaits_load = False
        self.leader_epoch = partition.leader_epoch  # the last one that it has heard of

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
    def coordinator_epoch(self) -> int:
        """By which partitions refuse the markers of a former coordinator."""
        return self.leader_epoch

    @property
    def now(self) -> Now:
        return Now(self._broker.clock.monotonic_ms(), self._broker.clock.wall_ms())

    def _new_machine(self) -> TransactionsMachine:
        now = self.now
        return TransactionsMachine(
            self._broker.settings,
            wall_ahead_ms=now.wall_ms - now.ms,
            coordinator_epoch=lambda: self.coordinator_epoch,
        )

    def _refusal(self) -> KafkaError:
        if self._awaits_load:
            return CoordinatorLoadInProgress("The transaction is being loaded; try again.")
        return NotCoordinator("This broker does not coordinate the transaction.")

    # Requests

    async def commit(self, decide: Callable[[TransactionsMachine], Decision[Record, Answer]]) -> Answer:
        """Decide, and answer once that is committed. Where replicas are too few or too slow, the client tries again."""
        leading = self._partition.leading
        if leading is None:
            return await self._driver.write(decide)
        if leading.machine.is_under_min_isr:
            raise CoordinatorNotAvailable(f"Too few replicas of {self.name} are in sync.")
        try:
            return await self._driver.write(decide, timeout_ms=COMMIT_MS_MAX)
        except RequestTimedOut:
            raise CoordinatorNotAvailable(f"The replicas of {self.name} are too slow.") from None

    async def commit_with_id(
        self, decide: Callable[[TransactionsMachine, ProducerId | None], Decision[Record, ProducerIdentity]]
    ) -> ProducerIdentity:
        """The same for what may need a fresh producer id, which is fetched only then."""
        try:
            return await self.commit(lambda machine: decide(machine, None))
        except ProducerIdNeeded:
            fresh = ProducerId(await self._broker.producer_ids.next())
        return await self.commit(lambda machine: decide(machine, fresh))

    # Refusals

    async def sure(self, refusal: KafkaError, transactional_id: str) -> KafkaError:
        """What a producer could not get over is not said before it is sure."""
        await self.confirm(transactional_id)
        return refusal

    async def confirm(self, transactional_id: str) -> None:
        """Raises if another broker may lead by now, and this one has not heard of it: what it knows may be old.

        A deposed leader commits nothing: so what is known of the id is written once more.
        """
        if self._partition.leading is not None:
            await self.commit(lambda machine: machine.decide_confirmed(transactional_id))

    # Markers

    def _perform(self, effect: object) -> None:
        assert isinstance(effect, SendMarkers)
        self._markers.send(self, effect)

    def all_marked(self, effect: SendMarkers) -> None:
        """The transaction is complete; nobody waits for that."""
        try:
            self._driver.submit(lambda machine: machine.decide_markers_written(effect, effect.partitions, now=self.now))
        except CoordinatorLoadInProgress:
            if self.is_ready:  # but too much waits to be committed; once it is loaded again, markers are sent again too
                asyncio.get_running_loop().call_later(BUSY_S, self.all_marked, effect)
        except KafkaError as error:  # whoever leads the shard next sends the markers again, and completes it
            logger.info("%s: the end of %s is not complete yet: %s", self.name, effect.transactional_id, error)

    # Life

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
            logger.debug("%s: transactions are loaded in %.0f ms", self.name, took_ms)

    def resign(self) -> None:
        """Another node leads the partition, or it is gone."""
        self._awaits_load = False
        self._markers.forget(self)
        self._driver.resign()
        self._log.close()

    async def close(self) -> None:
        """The node stops: what was decided is written first."""
        self._markers.forget(self)
        await self._driver.close()
        self._log.close()
