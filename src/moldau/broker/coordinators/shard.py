"""One partition of a topic that a machine stands on: how the machine comes to speak for it, and how it ceases to."""

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

LEADERSHIP_CHECK_MS_MAX: Final = (
    15.0 * SECOND_MS
)  # more than a replica that fell silent is waited for, less than clients wait

Machine = TypeVar("Machine", bound=ReplicatedMachine[Any])
Record = TypeVar("Record")
Response = TypeVar("Response")


class CoordinatingShard(Generic[Machine, Record]):
    """What is led here, loaded when it comes and given up when it goes. Those who are coordinated are of one kind."""

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
        """`kind` is what is coordinated, in a word; so long an answer is held; `options` are the driver's."""
        self._broker = broker
        self._partition = partition
        self._log = log
        self._kind = kind
        self._driver: ReplicatedDriver[Machine, Record] = ReplicatedDriver(
            log,
            new_machine,
            broker.clock,
            errors=UnavailableErrors(lost=self._refusal, late=self.too_few, unwritten=self._unwritten),
            commit_timeout=CommitTimeout(commit_ms_max, lambda: self.can_commit),
            failed=lambda error: on_failure(f"{partition.name} cannot coordinate any {kind}", error),
            **options,
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
    def now(self) -> Now:
        return Now(self._broker.clock.monotonic_ms(), self._broker.clock.wall_ms())

    @property
    def can_commit(self) -> bool:
        """Whether enough replicas are in sync. Whatever is written while they are not holds up everything behind it."""
        leading = self._partition.leading
        return leading is None or not leading.machine.is_under_min_isr

    async def commit(
        self,
        decide: Callable[[Machine], Decision[Record, Response]],
        ticket: Ticket | None = None,
        *,
        is_written_at_once: bool = False,
    ) -> Response:
        """Decide, and answer once that is committed. Where replicas are too few or too slow, the client tries again."""
        if not self.can_commit:
            raise self.too_few()
        return await self._driver.write(decide, ticket, is_written_at_once=is_written_at_once)

    def check_leadership(self) -> asyncio.Future[bool]:
        """True once it is sure that nobody else coordinates, or has by now: then what is read here is not old."""
        leading = self._partition.leading
        if leading is not None and not leading.machine.is_under_min_isr:
            return leading.leadership_check.confirm(LEADERSHIP_CHECK_MS_MAX)
        answered = asyncio.get_running_loop().create_future()
        # Where too few are in sync, somebody may lead who was until they became too few.
        answered.set_result(self._partition.is_leader and self._partition.leads_alone)
        return answered

    async def be_sure(self) -> None:
        """Raises where another broker may lead by now, and this one has not heard of it: what it knows may be old."""
        if not await self.check_leadership():
            raise self.unsure()

    def unsure(self) -> KafkaError:
        """While a controller knows of this broker, it is only to be asked again; otherwise others should be."""
        words = f"This broker cannot be sure that it still coordinates the {self._kind}."
        return CoordinatorLoadInProgress(words) if self._broker.controller.is_in_touch else NotCoordinator(words)

    def too_few(self) -> KafkaError:
        """What is not committed in time, or cannot be, is for the client to try again."""
        trouble = "slow" if self.can_commit else "few"
        return CoordinatorNotAvailable(f"Replicas of {self.name} that are in sync are too {trouble}.")

    def _unwritten(self, error: KafkaError | OSError) -> KafkaError:
        """A disk that is full for a moment is no reason for a client to give up. What else the log says is about one
        decision, and those who wait for others know nothing of it.
        """
        if isinstance(error, OSError | StorageFailed):
            return CoordinatorNotAvailable(f"The coordinator of the {self._kind} cannot write to its disk for now.")
        return UnknownServerFailure("The broker failed on this request; its log says more.")

    def _refusal(self) -> KafkaError:
        if self._awaits_load:
            return CoordinatorLoadInProgress(f"The {self._kind} is being loaded; try again.")
        return NotCoordinator(f"This broker does not coordinate the {self._kind}.")

    # Life

    def expect_load(self) -> None:
        """It will be loaded soon: whoever asks meanwhile is told so."""
        self._awaits_load = True

    async def load(self) -> None:
        """Replay the log, then speak for it."""
        began_ms = self._broker.clock.monotonic_ms()
        try:
            await self._driver.lead()
        except KafkaError:  # what is there cannot be read, and it makes no sense to wait
            self._awaits_load = False
            raise
        self._awaits_load = False
        if self._driver.is_leading:
            took_ms = self._broker.clock.monotonic_ms() - began_ms
            logger.debug("%s is loaded in %.0f ms", self.name, took_ms)

    def resign(self) -> None:
        """Another node leads the partition, or it is gone."""
        self._awaits_load = False
        self._driver.resign()
        self._log.close()

    async def close(self) -> None:
        """The node stops: what was decided is written first."""
        await self._driver.close()
        self._log.close()
