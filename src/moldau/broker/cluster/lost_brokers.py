"""Brokers that have just been lost, and how Metadata responses treat them meanwhile.

A client that loses its leader requests metadata from another broker within a millisecond, long before a new leader is
elected. If the response names the old leader, librdkafka waits most of a second before it retries. This broker loses
its own connection to the dying one at about the same time. So a repeated Metadata request is delayed by some
milliseconds and, for topics that a lost broker leads, until another broker leads them.

Also, librdkafka drops a broker that is no longer listed together with the requests it was about to move to the new
leader, and starts over a second later. So a fenced broker stays listed a little longer.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.machines.metadata.image import BrokerImage, MetadataImage, TopicImage
from moldau.model.ids import Address
from moldau.model.ports import Clock

NOTICED_MS: Final = 20.0  # a dying process closes its connections one after the other
HELD_MS_MAX: Final = 400.0  # from the loss of a connection on; a killed process is replaced faster than this
LISTED_MS: Final = 5_000.0


class LostBrokers:
    """`lost` is called when a connection ends, `followed` with each new image."""

    def __init__(self, node_id: int, clock: Clock, publisher: MetadataPublisher, listener: Callable[[], str]) -> None:
        self._node_id = node_id
        self._clock = clock
        self._publisher = publisher
        self._listener = listener  # the inter-broker listener
        self._lost_ms: dict[int, float] = {}
        self._fenced_ms: dict[int, float] = {}

    def lost(self, address: Address, reason: str) -> None:  # noqa: ARG002 - whatever it was
        """A connection to another broker has ended."""
        listener = self._listener()
        for broker in self._publisher.image.brokers.values():
            if broker.is_active and broker.broker_id != self._node_id and broker.address(listener) == address:
                self._lost_ms[broker.broker_id] = self._clock.monotonic_ms()

    def followed(self, before: MetadataImage, after: MetadataImage) -> None:
        """A new image is in effect."""
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
        """Whether to list this broker: it is unfenced, or was a moment ago."""
        if not broker.is_fenced:
            return True
        fenced_ms = self._fenced_ms.get(broker.broker_id)
        return fenced_ms is not None and self._clock.monotonic_ms() - fenced_ms < LISTED_MS

    async def settle(self, topics: Callable[[MetadataImage], Iterable[TopicImage]], *, is_retry: bool) -> None:
        """Wait until none of these topics is led by a broker that seems to be dying.

        First requests of a connection, and requests for topics that this broker leads, do not wait.
        """
        if is_retry and not self._lost_ms and self._are_led_elsewhere(topics(self._publisher.image)):
            await asyncio.sleep(NOTICED_MS / 1000)
        if not self._lost_ms:
            return
        now_ms = self._clock.monotonic_ms()
        self._lost_ms = {node: lost_ms for node, lost_ms in self._lost_ms.items() if now_ms - lost_ms < HELD_MS_MAX}
        suspects = frozenset(self._lost_ms)
        if suspects:
            held_ms = max(self._lost_ms.values()) + HELD_MS_MAX - now_ms
            await self._publisher.until(lambda image: not _are_led_by(suspects, topics(image)), held_ms)

    def _are_led_elsewhere(self, topics: Iterable[TopicImage]) -> bool:
        return any(partition.leader != self._node_id for topic in topics for partition in topic.partitions)


def _are_led_by(suspects: frozenset[int], topics: Iterable[TopicImage]) -> bool:
    return any(partition.leader in suspects for topic in topics for partition in topic.partitions)
