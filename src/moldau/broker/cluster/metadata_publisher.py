"""Puts each committed metadata image into effect on this broker, then publishes it to handlers.

    metadata driver --image, delta--> queue --merged--> partitions, groups, transactions, ... --> `image` (handlers)

One task applies the images in order. Deltas that queue up while one is being applied are merged and applied together.
Handlers see an image only after it is in effect, so a partition that they find in it is open and has its role.
"""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage

Follow = Callable[[MetadataImage, MetadataDelta], Awaitable[None]]


class MetadataPublisher:
    """Applies committed images one after the other; queued changes are merged."""

    def __init__(self, follow: Follow, on_failure: Callable[[BaseException], None]) -> None:
        self._follow = follow
        self._on_failure = on_failure
        self.image = MetadataImage()  # the published image: everything in it is in effect
        self._newest = MetadataImage()
        self._delta = MetadataDelta()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._waits: list[tuple[Callable[[MetadataImage], bool], asyncio.Future[None]]] = []

    def committed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Subscriber of the metadata driver."""
        self._newest = image
        self._delta = self._delta.then(delta)
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._apply_queued())

    async def catch_up(self) -> None:
        """Wait until everything committed so far is in effect."""
        wanted = self._newest.offset
        if self.image is not self._newest:
            await self.until(lambda image: image.offset >= wanted)

    async def until(self, is_so: Callable[[MetadataImage], bool], timeout_ms: float | None = None) -> bool:
        """Wait until an image that satisfies the condition is in effect; False on timeout."""
        if is_so(self.image):
            return True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait = (is_so, done)
        self._waits.append(wait)
        seconds = None if timeout_ms is None else timeout_ms / 1000
        try:
            await asyncio.wait([done], timeout=seconds)
            return done.done()
        finally:
            if wait in self._waits:
                self._waits.remove(wait)

    async def _apply_queued(self) -> None:
        try:
            while self.image is not self._newest and not self._is_closed:
                image, delta = self._newest, self._delta
                self._delta = MetadataDelta()
                await self._follow(image, delta)
                self.image = image
                self._release()
        except Exception as error:
            self._on_failure(error)
        finally:
            self._task = None

    def _release(self) -> None:
        waits, self._waits = self._waits, []
        for is_so, done in waits:
            if is_so(self.image):
                done.set_result(None)
            else:
                self._waits.append((is_so, done))

    async def close(self) -> None:
        """Ignore later images: a closed log neither leads nor follows."""
        self._is_closed = True
        if self._task is not None:
            await asyncio.wait([self._task])
