"""A coordinator shard: one partition of an internal topic and the replicated machine on it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.partition_log import PartitionLog
from moldau.broker.drivers.commit_waiters import CommitTimeout
from moldau.broker.drivers.replicated import ReplicatedDriver, UnavailableErrors
from moldau.broker.partitions.partition import Partition
from moldau.machines.decision import Decision, Now, ReplicatedMachine, Ticket
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    StorageFailed,
    UnknownServerFailure,
)
from moldau.model.ids import TopicPartition
from moldau.model.units import SECOND_MS

logger = logging.getLogger(__name__)

# Longer than it takes to remove an unresponsive replica from the ISR, shorter than client timeouts.
LEADERSHIP_CHECK_MS_MAX: Final = 15.0 * SECOND_MS

Machine = TypeVar("Machine", bound=ReplicatedMachine[Any])
Record = TypeVar("Record")
Response = TypeVar("Response")


class CoordinatorShard(Generic[Machine, Record]):
    """Loaded when this broker becomes the partition's leader, discarded when another one does."""

    def __init__(
        self,
        partition: Partition,
        broker: CoordinatorHost,
        log: PartitionLog[Record],
        new_machine: Callable[[], Machine],
        on_failure: Callable[[str, BaseException], None],
        *,
        kind: str,
        commit_ms_max: Callable[[], float],
        **options: Any,
    ) -> None:
        """`kind` names the keys in messages; `commit_ms_max` limits waits for a commit; `options` are the driver's."""
        self._broker = broker
        self._partition = partition
        self._log = log
        self._kind = kind
        self._driver: ReplicatedDriver[Machine, Record] = ReplicatedDriver(
            log,
            new_machine,
            broker.clock,
            errors=UnavailableErrors(
                lost=self._not_ready_error, late=self.not_committed_error, unwritten=self._write_error
            ),
            commit_timeout=CommitTimeout(commit_ms_max, lambda: self.can_commit),
            failed=lambda error: on_failure(f"{partition.name}: the {kind} coordinator failed", error),
            **options,
        )
        self.read = self._driver.read
        self._awaits_load = False
        self.leader_epoch = partition.role.leader_epoch  # the last known one

    @property
    def name(self) -> TopicPartition:
        return self._partition.name

    @property
    def is_ready(self) -> bool:
        return self._driver.is_leading

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty."""
        return self._partition.log.end_offset == self._partition.log.start_offset

    @property
    def now(self) -> Now:
        return Now(self._broker.clock.monotonic_ms(), self._broker.clock.wall_ms())

    @property
    def can_commit(self) -> bool:
        """Whether the ISR is large enough. Otherwise writes would block everything behind them."""
        leading = self._partition.role.leading
        return leading is None or not leading.machine.is_under_min_isr

    async def commit(
        self,
        decide: Callable[[Machine], Decision[Record, Response]],
        ticket: Ticket | None = None,
        *,
        is_written_at_once: bool = False,
    ) -> Response:
        """Decide, and return once the decision is committed. With too few or slow replicas, clients get a retriable
        error."""
        if not self.can_commit:
            raise self.not_committed_error()
        return await self._driver.write(decide, ticket, is_written_at_once=is_written_at_once)

    def check_leadership(self) -> asyncio.Future[bool]:
        """Resolve to True once no other broker can have been the coordinator at the time of the call."""
        leading = self._partition.role.leading
        if leading is not None and not leading.machine.is_under_min_isr:
            return leading.leadership_check.confirm(LEADERSHIP_CHECK_MS_MAX)
        result = asyncio.get_running_loop().create_future()
        # Below min ISR, a replica that has left the ISR may lead.
        result.set_result(self._partition.role.is_leader and self._partition.role.leads_alone)
        return result

    async def ensure_leadership(self) -> None:
        """Raise if another broker may be the coordinator: this one's state may be stale."""
        if not await self.check_leadership():
            raise self.unconfirmed_error()

    def unconfirmed_error(self) -> KafkaError:
        """Retry here while this broker is in contact with the controller; otherwise find the coordinator again."""
        message = f"This broker cannot confirm that it is still the coordinator of the {self._kind}."
        return CoordinatorLoadInProgress(message) if self._broker.controller.is_in_touch else NotCoordinator(message)

    def not_committed_error(self) -> KafkaError:
        """The retriable error for decisions that are not committed in time."""
        trouble = "the ISR responds too slowly" if self.can_commit else "the ISR is below min.insync.replicas"
        return CoordinatorNotAvailable(f"Cannot commit to {self.name}: {trouble}.")

    def _write_error(self, error: KafkaError | OSError) -> KafkaError:
        """A disk error is retriable for clients. Any other error concerns a decision that only some waiters made, so
        the others get an unspecific one."""
        if isinstance(error, OSError | StorageFailed):
            return CoordinatorNotAvailable(f"The coordinator of the {self._kind} cannot write to its disk; retry.")
        return UnknownServerFailure("Internal error; see the broker's log.")

    def _not_ready_error(self) -> KafkaError:
        if self._awaits_load:
            return CoordinatorLoadInProgress(f"The {self._kind} is being loaded; retry.")
        return NotCoordinator(f"This broker is not the coordinator of the {self._kind}.")

    # Lifecycle

    def expect_load(self) -> None:
        """It will be loaded soon: respond COORDINATOR_LOAD_IN_PROGRESS until then."""
        self._awaits_load = True

    async def load(self) -> None:
        """Replay the log, then accept requests."""
        started_ms = self._broker.clock.monotonic_ms()
        try:
            await self._driver.lead()
        except KafkaError:  # the log cannot be read, and waiting does not help
            self._awaits_load = False
            raise
        self._awaits_load = False
        if self._driver.is_leading:
            elapsed_ms = self._broker.clock.monotonic_ms() - started_ms
            logger.debug("%s: loaded in %.0f ms", self.name, elapsed_ms)

    def resign(self) -> None:
        """Another node leads the partition, or it was deleted."""
        self._awaits_load = False
        self._driver.resign()
        self._log.close()

    async def close(self) -> None:
        """Write pending decisions and stop."""
        await self._driver.close()
        self._log.close()
