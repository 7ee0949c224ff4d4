"""Shows committed images to those who follow the metadata, and what changed since the last one they saw."""

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
    """Observes the machine: images queue up as records are applied, and are shown as these are committed."""

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
            self._publish(newest, delta)

    def discarded(self) -> None:
        """The next machine begins from nothing: what it calls a change is none to those who saw the last image."""
        self._applied.clear()
        self._is_continuous = False

    def _publish(self, newest: _Applied, delta: MetadataDelta) -> None:
        if not self._is_continuous:
            delta = delta_between(self.image, newest.image)
            self._is_continuous = True
        self.image, self.end_offset = newest.image, newest.end_offset
        for subscriber in self._subscribers:
            subscriber(self.image, delta)
