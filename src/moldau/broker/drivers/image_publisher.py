"""Shows committed images to those who follow the metadata, and what changed since the last one they saw.

While this node leads they come from the machine, while it follows from its log (`image_follower`): one goes on where
the other ended, so that whoever follows sees one line of images, whoever leads.
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
    """Holds the newest committed image. As the machine's observer it queues those that wait for their commit."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.end_offset = 0  # what is below it is in the image
        self._applied: deque[_Applied] = deque()
        self._subscribers: list[Subscriber] = []
        self._is_continuous = True

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber`, which must not raise, for every image from now on; at once, if there is one."""
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
        """The machine is gone. The next one begins from the image that was shown last."""
        self._applied.clear()

    def begin_anew(self) -> None:
        """The next image comes from nothing: what it calls a change is none to those who saw the last one."""
        self._is_continuous = False

    def publish(self, image: MetadataImage, delta: MetadataDelta, end_offset: int) -> None:
        """Show a committed image that holds everything below `end_offset`, `delta` after the last one."""
        if not self._is_continuous:
            delta = delta_between(self.image, image)
            self._is_continuous = True
        self.image, self.end_offset = image, end_offset
        for subscriber in self._subscribers:
            subscriber(image, delta)
