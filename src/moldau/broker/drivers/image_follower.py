"""Builds metadata images from the committed records of the log while another node leads."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from moldau.broker.drivers.image_publisher import ImagePublisher
from moldau.broker.drivers.metadata_batches import read_records
from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.broker.drivers.snapshot_store import LoadedSnapshot
from moldau.broker.drivers.time_slices import Slices
from moldau.machines.metadata.builder import ImageBuilder
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import EpochBegan, Record
from moldau.model.errors import OffsetOutOfRange
from moldau.model.ports import Clock
from moldau.records.record import iterate_batches

SLICE_LOOK: Final = 4  # records between two checks of the clock


class ImageFollower:
    """Continues from the last published image. `start`, `wake` on commits and snapshots, `stop`."""

    def __init__(
        self, log: MetadataLog, publisher: ImagePublisher, clock: Clock, failed: Callable[[BaseException], None]
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._clock = clock
        self._failed = failed
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Stop publishing; a half-applied image is discarded."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def wake(self) -> None:
        """Apply newly committed records or a new snapshot."""
        self._woken.set()

    async def _follow(self) -> None:
        try:
            builder = ImageBuilder(self._publisher.image)
            next_offset = self._publisher.end_offset
            while True:
                self._woken.clear()
                if self._needs_snapshot(next_offset) and (loaded := await self._log.load_snapshot()):
                    builder = ImageBuilder(MetadataImage())
                    next_offset = await self._apply_snapshot(builder, loaded)
                elif next_offset < self._log.high_watermark:
                    next_offset = await self._apply_committed(builder, next_offset)
                else:
                    await self._woken.wait()
        except Exception as error:
            self._failed(error)

    def _needs_snapshot(self, next_offset: int) -> bool:
        """Snapshots hold committed records only, whatever the known high watermark is."""
        newest = self._log.snapshots.newest
        is_behind = next_offset == 0 or next_offset < self._log.start_offset
        return newest is not None and is_behind and next_offset < newest.offset

    async def _apply_snapshot(self, builder: ImageBuilder, loaded: LoadedSnapshot) -> int:
        builder.apply(EpochBegan(loaded.snapshot.epoch), loaded.snapshot.offset - 1)
        await self._apply(builder, loaded.records())
        self._publisher.restart()
        self._publisher.publish(*builder.finish(), loaded.snapshot.offset)
        return loaded.snapshot.offset

    async def _apply_committed(self, builder: ImageBuilder, next_offset: int) -> int:
        try:
            batches = await self._log.read_committed(next_offset)
        except OffsetOutOfRange:  # a snapshot has replaced this part of the log
            return next_offset
        await self._apply(builder, read_records(batches))
        for header, _ in iterate_batches(batches):
            next_offset = header.next_offset
        if not builder.is_in_transaction:
            self._publisher.publish(*builder.finish(), next_offset)
        return next_offset

    async def _apply(self, builder: ImageBuilder, records: Iterable[tuple[int, Record]]) -> None:
        """Apply in slices that do not stall the event loop."""
        slices = Slices(self._clock)
        for count, (offset, record) in enumerate(records, 1):
            builder.apply(record, offset)
            if count % SLICE_LOOK == 0 and slices.is_over():
                await slices.yield_to_requests()
