"""A shard of the transaction coordinator: a partition of `__transaction_state` and the machine on it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.coordinators.shard import CoordinatorShard
from moldau.broker.partitions.partition import Partition
from moldau.broker.transactions.markers import Markers
from moldau.broker.transactions.record_serde import TransactionCoding
from moldau.machines.decision import Decision
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
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
)
from moldau.model.ids import ProducerId
from moldau.model.units import SECOND_MS

logger = logging.getLogger(__name__)

COMMIT_MS_MAX: Final = (
    5 * SECOND_MS
)  # shorter than the request timeouts of clients and brokers, which retry on the error
BUSY_S: Final = 0.1
FATAL_ERRORS: Final = (
    ProducerFenced,
    InvalidProducerIdMapping,
    InvalidTxnState,
)  # fatal for a producer: check the leadership before responding them


class TransactionShard(CoordinatorShard[TransactionsMachine, Record]):
    """Handlers use `commit` and `read`; both raise while the shard is loading."""

    def __init__(
        self,
        partition: Partition,
        broker: CoordinatorHost,
        markers: Markers,
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._markers = markers
        log: PartitionLog[Record] = PartitionLog(
            partition,
            TransactionCoding(lambda: broker.image.features.get(TRANSACTION_VERSION_FEATURE, 0)),
            broker.clock,
            broker.executor,
            read_bytes=broker.settings.transaction_state_log_load_buffer_size,
        )
        super().__init__(
            partition,
            broker,
            log,
            self._new_machine,
            on_failure,
            kind="transaction",
            commit_ms_max=lambda: COMMIT_MS_MAX,
            perform=self._perform,
        )

    @property
    def coordinator_epoch(self) -> int:
        """The epoch by which partitions fence markers of an earlier coordinator."""
        return self.leader_epoch

    def _new_machine(self) -> TransactionsMachine:
        now = self.now
        return TransactionsMachine(
            self._broker.settings,
            wall_offset_ms=now.wall_ms - now.ms,
            coordinator_epoch=lambda: self.coordinator_epoch,
        )

    async def commit_with_id(
        self, decide: Callable[[TransactionsMachine, ProducerId | None], Decision[Record, ProducerIdentity]]
    ) -> ProducerIdentity:
        """Like `commit`, for decisions that may need a new producer id, which is allocated only then."""
        try:
            return await self.commit(lambda machine: decide(machine, None))
        except ProducerIdNeeded:
            fresh = ProducerId(await self._broker.producer_ids.next())
        return await self.commit(lambda machine: decide(machine, fresh))

    async def confirm_error(self, error: KafkaError) -> KafkaError:
        """Return an error that is fatal for the producer, after a leadership check: this state may be stale."""
        await self.ensure_leadership()
        return error

    # Markers

    def _perform(self, effect: object) -> None:
        assert isinstance(effect, SendMarkers)
        self._markers.send(self, effect)

    def all_marked(self, effect: SendMarkers) -> None:
        """Decide that the transaction is complete; nothing waits for it."""
        if self.is_ready and not self.can_commit:
            asyncio.get_running_loop().call_later(BUSY_S, self.all_marked, effect)
            return
        try:
            self._driver.submit(lambda machine: machine.decide_markers_written(effect, effect.partitions, now=self.now))
        except CoordinatorLoadInProgress:
            if self.is_ready:  # too many uncommitted decisions; a reload would send the markers again
                asyncio.get_running_loop().call_later(BUSY_S, self.all_marked, effect)
        except KafkaError as error:  # the next leader of the shard sends the markers again
            logger.info(
                "%s: completing the transaction of %s failed, the next coordinator will: %s",
                self.name,
                effect.transactional_id,
                error,
            )

    # Lifecycle

    def resign(self) -> None:
        self._markers.forget(self)
        super().resign()

    async def close(self) -> None:
        self._markers.forget(self)
        await super().close()
