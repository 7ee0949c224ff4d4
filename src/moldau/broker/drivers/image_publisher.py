"""Publishes committed metadata images to subscribers, each with its delta to the previous one.

On the active controller the images come from the machine, elsewhere from the log (`image_follower`). One continues
where the other stopped, so subscribers see a single sequence of images across changes of the leader.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from moldau.machines.metadata.delta import MetadataDelta, delta_between
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.machine import MetadataMachine

Subscriber = Callable[[MetadataImage, MetadataDelta], None]


class _Applied(NamedTuple):
    end_offset: int
    image: MetadataImage
    delta: MetadataDelta


class ImagePublisher:
    """Holds the newest committed image. As the machine's observer it queues applied images until they are committed."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.end_offset = 0  # the image holds all records below it
        self._applied: deque[_Applied] = deque()
        self._subscribers: list[Subscriber] = []
        self._is_continuous = True

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber`, which must not raise, for every image from now on; at once if there is one already."""
        self._subscribers.append(subscriber)
        if self.end_offset:
            subscriber(self.image, delta_between(MetadataImage(), self.image))

    def applied(self, machine: MetadataMachine, end_offset: int) -> None:
        self._applied.append(_Applied(end_offset, *machine.take_change()))

    def committed(self, end_offset: int) -> None:
        delta = MetadataDelta()
        newest: _Applied | None = None
        while self._applied and self._applied[0].end_offset <= end_offset:
            newest = self._applied.popleft()
            delta = delta.then(newest.delta)
        if newest is not None:
            self.publish(newest.image, delta, newest.end_offset)

    def discarded(self) -> None:
        """The machine was discarded. The next one starts from the last published image."""
        self._applied.clear()

    def restart(self) -> None:
        """The next image is built from scratch, so its delta does not apply to the last published one."""
        self._is_continuous = False

    def publish(self, image: MetadataImage, delta: MetadataDelta, end_offset: int) -> None:
        """Publish a committed image that holds all records below `end_offset`; `delta` is relative to the last one."""
        if not self._is_continuous:
            delta = delta_between(self.image, image)
            self._is_continuous = True
        self.image, self.end_offset = image, end_offset
        for subscriber in self._subscribers:
            subscriber(image, delta)
