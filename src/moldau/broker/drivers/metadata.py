"""The metadata of the cluster on this node: the machine on its log, committed images for the rest of the broker."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from moldau.broker.drivers.image_publisher import ImagePublisher, Subscriber
from moldau.broker.drivers.metadata_batches import Voter
from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.broker.drivers.replicated import Refusals, ReplicatedDriver
from moldau.broker.settings import MetadataLogSettings
from moldau.machines.decision import Decision
from moldau.machines.metadata.configs import ConfigRules
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.machine import MetadataMachine
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import MetadataSettings
from moldau.model.errors import KafkaError, NotController
from moldau.model.ids import Address
from moldau.model.ports import Clock, Disk, Executor

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class MetadataDriver:
    """Runs the metadata machine with this node as its only voter. `subscribe`, `start`, use, `close`."""

    def __init__(
        self,
        data_folder: str,
        voter: Voter,
        *,
        disk: Disk,
        executor: Executor,
        clock: Clock,
        rules: ConfigRules,
        log_settings: MetadataLogSettings,
        machine_settings: Callable[[], MetadataSettings],
        failed: Callable[[BaseException], None],
        has_lost_power: bool = False,
    ) -> None:
        """`machine_settings` is asked whenever a machine is made; `failed` hears of what must end this node."""
        self._log = MetadataLog(
            data_folder, voter, disk, executor, clock, log_settings, self._fail, has_lost_power=has_lost_power
        )
        self._node_id = voter.voter_id
        self.on_leader_changed: list[Callable[[], None]] = []  # called when `is_active` or `leader_id` has changed
        self._settings = log_settings
        self._failed = failed
        self._publisher = ImagePublisher()
        self._publisher.subscribe(self._plan_snapshot)
        self._driver: ReplicatedDriver[MetadataMachine, Record] = ReplicatedDriver(
            self._log,
            lambda: MetadataMachine(machine_settings(), rules),
            clock,
            refusals=Refusals(lost=NotController, loading=NotController, busy=NotController),
            failed=failed,
            observer=self._publisher,
        )
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._snapshotting: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Bring the log back, win the election, replay; returns when the committed image has been shown."""
        self._log.open()
        self._log.elect()
        await self._driver.lead()
        await self._driver.read(lambda machine: machine.image)
        await self._log.drop_superfluous()  # a crash may have come between a snapshot and this

    async def close(self) -> None:
        """Everything that was decided is on disk when this returns."""
        with suppress(KafkaError):  # after a failure nothing can be committed any more
            await self._driver.read(lambda machine: None)  # noqa: ARG005
        await self._driver.close()
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
        if self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])
        await self._log.close()

    def _fail(self, error: BaseException) -> None:
        self._driver.resign()  # whoever waits for a commit would wait for ever
        self._failed(error)

    # Use

    @property
    def image(self) -> MetadataImage:
        """The newest committed one."""
        return self._publisher.image

    @property
    def epoch(self) -> int:
        """Of this controller."""
        return self._log.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return True

    @property
    def leader_id(self) -> int:
        """The active controller, -1 if it is unknown."""
        return self._node_id

    @property
    def controller_address(self) -> Address | None:
        """Where the active controller is asked, None if it is unknown."""
        return None

    @property
    def next_offset(self) -> int:
        """Where the first record of the next decision will stand; right only inside of `decide`."""
        return self._driver.next_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(image, delta)` for every committed image from now on, before whoever wrote is answered."""
        self._publisher.subscribe(subscriber)

    async def write(self, decide: Callable[[MetadataMachine], Decision[Record, Answer]]) -> Answer:
        """Decide, and answer once that is on disk and the image has been shown."""
        return await self._driver.write(decide)

    async def read(self, query: Callable[[MetadataMachine], Answer]) -> Answer:
        """What the newest state says, once it is committed; `image` is enough for those who need not see all of it."""
        return await self._driver.read(query)

    # Snapshots

    def _plan_snapshot(self, image: MetadataImage, delta: MetadataDelta) -> None:  # noqa: ARG002
        if self._snapshotting is not None:
            return
        if self._log.bytes_since_snapshot >= self._settings.metadata_log_max_record_bytes_between_snapshots:
            self._begin_snapshot()
        elif self._snapshot_timer is None and self._settings.metadata_log_max_snapshot_interval_ms:
            delay = self._settings.metadata_log_max_snapshot_interval_ms / 1000
            self._snapshot_timer = asyncio.get_running_loop().call_later(delay, self._begin_snapshot)

    def _begin_snapshot(self) -> None:
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
            self._snapshot_timer = None
        if self._snapshotting is None:
            self._snapshotting = asyncio.get_running_loop().create_task(self.take_snapshot())

    async def take_snapshot(self) -> None:
        """Write the committed image to a snapshot. A disk that is full keeps the log longer, and that is all."""
        try:
            await self._log.take_snapshot(self._publisher.image, self._publisher.end_offset)
        except OSError as error:
            log.error("a snapshot of the metadata could not be written: %s", error)
        except Exception as error:  # a sync that failed, or a bug
            self._fail(error)
        finally:
            self._snapshotting = None
