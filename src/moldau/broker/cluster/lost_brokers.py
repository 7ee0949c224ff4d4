"""Brokers that have just gone, and what clients are told of them meanwhile.

A client that loses its leader asks the next broker for the new one within a millisecond, long before one is elected. If
it is given the old one again, librdkafka waits for most of a second before it asks anew. We lose our own connection to
the dying broker at about the same moment. So who asks once more is answered some milliseconds later, and who asks for
what a lost broker leads, when somebody else leads it.

And librdkafka drops a broker that is no longer listed together with what it was about to move from there to the new
leader, and begins again a second later. So a broker that was fenced is listed a little longer.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.machines.metadata.image import BrokerImage, MetadataImage, TopicImage
from moldau.model.ids import Address
from moldau.model.ports import Clock

NOTICED_MS: Final = 20.0  # the connections of a dying process are closed one after the other
HELD_MS_MAX: Final = 400.0  # from the loss of a connection on; what takes longer is not a process that was killed
LISTED_MS: Final = 5_000.0


class LostBrokers:
    """`lost` hears of connections that end, `followed` of each new image."""

    def __init__(self, node_id: int, clock: Clock, publishing: MetadataPublisher, listener: Callable[[], str]) -> None:
        self._node_id = node_id
        self._clock = clock
        self._publishing = publishing
        self._listener = listener  # on which brokers reach each other
        self._lost_ms: dict[int, float] = {}
        self._fenced_ms: dict[int, float] = {}

    def lost(self, address: Address, reason: str) -> None:  # noqa: ARG002 - whatever it was
        """A connection of ours has ended."""
        listener = self._listener()
        for broker in self._publishing.image.brokers.values():
            if broker.is_active and broker.broker_id != self._node_id and broker.address(listener) == address:
                self._lost_ms[broker.broker_id] = self._clock.monotonic_ms()

    def followed(self, before: MetadataImage, after: MetadataImage) -> None:
        """Another image is in effect."""
        if before.brokers is after.brokers:
            return
        now_ms = self._clock.monotonic_ms()
        for broker in after.brokers.values():
            known = before.brokers.get(broker.broker_id)
            if not broker.is_fenced:
                self._fenced_ms.pop(broker.broker_id, None)
            elif known is not None and not known.is_fenced:
                self._fenced_ms[broker.broker_id] = now_ms
        for gone in [each for each in self._fenced_ms if each not in after.brokers]:
            del self._fenced_ms[gone]

    def is_listed(self, broker: BrokerImage) -> bool:
        """Whether clients should be told of this broker: it serves, or did so a moment ago."""
        if not broker.is_fenced:
            return True
        fenced_ms = self._fenced_ms.get(broker.broker_id)
        return fenced_ms is not None and self._clock.monotonic_ms() - fenced_ms < LISTED_MS

    async def settle(self, topics: Callable[[MetadataImage], Iterable[TopicImage]], *, is_retry: bool) -> None:
        """Until none of these topics is led by a broker that seems to be dying, or until it does not seem so any more.

        Who asks for the first time, and who asks for what we lead ourselves, does not wait.
        """
        if is_retry and not self._lost_ms and self._are_led_elsewhere(topics(self._publishing.image)):
            await asyncio.sleep(NOTICED_MS / 1000)
        if not self._lost_ms:
            return
        now_ms = self._clock.monotonic_ms()
        self._lost_ms = {node: lost_ms for node, lost_ms in self._lost_ms.items() if now_ms - lost_ms < HELD_MS_MAX}
        suspects = frozenset(self._lost_ms)
        if suspects:
            held_ms = max(self._lost_ms.values()) + HELD_MS_MAX - now_ms
            await self._publishing.until(lambda image: not _are_led_by(suspects, topics(image)), held_ms)

    def _are_led_elsewhere(self, topics: Iterable[TopicImage]) -> bool:
        return any(partition.leader != self._node_id for topic in topics for partition in topic.partitions)


def _are_led_by(suspects: frozenset[int], topics: Iterable[TopicImage]) -> bool:
    return any(partition.leader in suspects for topic in topics for partition in topic.partitions)
