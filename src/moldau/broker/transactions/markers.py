"""Sends transaction markers to partition leaders, and retries until every marker is written.

    shard decides the end --SendMarkers--> queue per leader --WriteTxnMarkers, up to 4 lanes--> leader
                                              ^                                                   |
                                              +------- retriable errors: to_retry after 0.1 s -------+
    all written or deleted --> owner.all_marked --> the shard decides that the transaction is complete

Partitions are routed by the newest metadata, at the time of each attempt. A shard that is resigned forgets its markers:
the next coordinator reads the decided end from the log and sends them to_retry. Markers are idempotent.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.transactions import SendMarkers
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_NODE, TopicPartition
from moldau.model.units import SECOND_MS
from moldau.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

PARTITIONS_PER_REQUEST: Final = 2_000
REQUESTS_PER_BROKER: Final = 4  # in flight: a slow partition does not delay all others
TIMEOUT_MS: Final = 15 * SECOND_MS  # longer than a leader waits for the ISR
RETRY_S: Final = 0.1
PURPOSE: Final = "markers"

# A partition with a later epoch of the producer is past this transaction and rejects the marker forever. Retrying would
# block the transactional id.
_WRITTEN: Final = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)


class MarkersOwner(Protocol):
    """The shard that decided the end of the transactions."""

    @property
    def coordinator_epoch(self) -> int:
        """The epoch by which partitions fence markers of an earlier coordinator."""
        ...

    def all_marked(self, effect: SendMarkers) -> None:
        """Every partition has its marker, or was deleted."""
        ...


class _Ending:
    """A transaction that ends, and its partitions without a marker."""

    __slots__ = ("effect", "left", "owner")

    def __init__(self, owner: MarkersOwner, effect: SendMarkers) -> None:
        self.owner = owner
        self.effect = effect
        self.left: dict[TopicPartition, None] = dict.fromkeys(effect.partitions)


_Share = tuple[_Ending, list[TopicPartition]]  # an ending, and those of its partitions that share a request


class _Route:
    """The queue of one broker, and the lanes with a request in flight."""

    __slots__ = ("is_scheduled", "lanes", "queue")

    def __init__(self) -> None:
        self.queue: dict[_Ending, list[TopicPartition]] = {}
        self.lanes: set[int] = set()
        self.is_scheduled = False  # scheduled for the next turn of the loop


class Markers:
    """The markers of all shards of this broker; bounded by the partitions of ending transactions."""

    def __init__(self, broker: CoordinatorHost, on_failure: Callable[[str, BaseException], None]) -> None:
        self._broker = broker
        self._on_failure = on_failure
        self._endings: dict[tuple[MarkersOwner, str], _Ending] = {}
        self._routes: dict[int, _Route] = {}
        self._to_retry: list[_Share] = []
        self._retry_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._image = MetadataImage()
        self._is_metadata_complete = False
        self._is_closed = False
        self.backlog = 0  # partitions without their marker
        self.ended: Counter[bool] = Counter()  # transactions, by whether they were committed

    # Metadata

    def update_image(self, image: MetadataImage) -> None:
        """Set the newest image; it is at least as new as the one that made this broker the coordinator."""
        self._image = image

    def start(self) -> None:
        """The metadata of this run is complete: from now on a missing topic is a deleted one."""
        self._is_metadata_complete = True

    def _leader(self, partition: TopicPartition) -> int | None:
        """Return None for a deleted partition."""
        where = self._image.partition(*partition)
        if where is None:
            return None if self._is_metadata_complete else NO_NODE
        return where.leader

    # Queueing

    def send(self, owner: MarkersOwner, effect: SendMarkers) -> None:
        """Send the markers until all are written. Replaces an earlier call for this transaction, as after a reload."""
        if self._is_closed:
            return
        self._drop((owner, effect.transactional_id))
        ending = self._endings[owner, effect.transactional_id] = _Ending(owner, effect)
        self.backlog += len(ending.left)
        self._queue(ending, effect.partitions)

    def forget(self, owner: MarkersOwner) -> None:
        """Drop the markers of a shard: its next coordinator sends them."""
        for key in [key for key in self._endings if key[0] is owner]:
            self._drop(key)

    def _drop(self, key: tuple[MarkersOwner, str]) -> None:
        ending = self._endings.pop(key, None)
        if ending is not None:
            self.backlog -= len(ending.left)

    def _is_current(self, ending: _Ending) -> bool:
        return self._endings.get((ending.owner, ending.effect.transactional_id)) is ending

    def _queue(self, ending: _Ending, partitions: Iterable[TopicPartition]) -> None:
        """Queue each partition for its leader, or for a retry while it has none."""
        deleted, leaderless = [], []
        for partition in partitions:
            leader = self._leader(partition)
            if leader is None:
                deleted.append(partition)
            elif leader == NO_NODE:
                leaderless.append(partition)
            else:
                route = self._routes.setdefault(leader, _Route())
                route.queue.setdefault(ending, []).append(partition)
                self._start_lane(leader, route)
        if deleted:  # not at once: the caller may be within a decision of the owner
            asyncio.get_running_loop().call_soon(self._written, ending, deleted)
        if leaderless:
            self._schedule_retry([(ending, leaderless)])

    def _written(self, ending: _Ending, partitions: Iterable[TopicPartition]) -> None:
        if not self._is_current(ending):
            return
        for partition in partitions:
            if partition in ending.left:
                del ending.left[partition]
                self.backlog -= 1
        if not ending.left:
            self._finish(ending)

    def _finish(self, ending: _Ending) -> None:
        del self._endings[ending.owner, ending.effect.transactional_id]
        self.ended[ending.effect.is_commit] += 1
        ending.owner.all_marked(ending.effect)

    # Sending

    def _start_lane(self, node_id: int, route: _Route) -> None:
        """Start a lane in the next turn of the loop, so that one request carries all markers of this turn."""
        lane = next((lane for lane in range(REQUESTS_PER_BROKER) if lane not in route.lanes), None)
        if lane is None or route.is_scheduled:
            return
        route.lanes.add(lane)
        route.is_scheduled = True
        task = asyncio.get_running_loop().create_task(self._drain(node_id, route, lane))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _drain(self, node_id: int, route: _Route, lane: int) -> None:
        try:
            while shares := self._take(node_id, route):
                await self._deliver(node_id, shares, lane)
        except Exception as error:
            self._on_failure("sending transaction markers failed", error)
        finally:
            route.lanes.discard(lane)

    def _take(self, node_id: int, route: _Route) -> list[_Share]:
        """Take the next request's markers. A partition with another leader meanwhile is queued for that one."""
        route.is_scheduled = False
        shares: list[_Share] = []
        count = 0
        while route.queue and count < PARTITIONS_PER_REQUEST:
            ending = next(iter(route.queue))
            partitions = route.queue.pop(ending)
            if not self._is_current(ending):
                continue
            here, elsewhere = self._split(node_id, partitions)
            if elsewhere:
                self._queue(ending, elsewhere)
            if here:
                shares.append((ending, here))
                count += len(here)
        return shares

    def _split(self, node_id: int, partitions: list[TopicPartition]) -> tuple[list[TopicPartition], ...]:
        here: list[TopicPartition] = []
        elsewhere: list[TopicPartition] = []
        for partition in partitions:
            (here if self._leader(partition) == node_id else elsewhere).append(partition)
        return here, elsewhere

    async def _deliver(self, node_id: int, shares: Sequence[_Share], lane: int) -> None:
        """Send one request; markers that were not written are retried with the leader of that time."""
        try:
            codes = _codes(await self._request_markers(node_id, _request(shares), lane))
        except (KafkaError, OSError):
            self._schedule_retry(shares)
            return
        for ending, partitions in shares:
            outcomes = [(each, codes.get((ending.effect.producer_id, each))) for each in partitions]
            left = [each for each, code in outcomes if code not in _WRITTEN]
            self._log_rejections(node_id, ending, outcomes)
            self._written(ending, [each for each, code in outcomes if code in _WRITTEN])
            if left:
                self._schedule_retry([(ending, left)])

    async def _request_markers(
        self, node_id: int, request: WriteTxnMarkersRequest, lane: int
    ) -> WriteTxnMarkersResponse:
        response: WriteTxnMarkersResponse
        if node_id == self._broker.node_id:
            response = await self._broker.local.handle(request)
            return response
        registered = self._image.brokers.get(node_id)
        address = None if registered is None else registered.address(self._broker.inter_broker_listener)
        if address is None:
            raise ConnectionError(f"broker {node_id} has no address on the inter-broker listener")
        response = await self._broker.peers.ask(address, request, timeout_ms=TIMEOUT_MS, purpose=f"{PURPOSE}-{lane}")
        return response

    # Retries

    def _schedule_retry(self, shares: Iterable[_Share]) -> None:
        self._to_retry += shares
        if self._retry_timer is None:
            self._retry_timer = asyncio.get_running_loop().call_later(RETRY_S, self._retry_all)

    def _retry_all(self) -> None:
        self._retry_timer = None
        to_retry, self._to_retry = self._to_retry, []
        for ending, partitions in to_retry:
            if self._is_current(ending):
                self._queue(ending, partitions)

    def _log_rejections(
        self, node_id: int, ending: _Ending, outcomes: Sequence[tuple[TopicPartition, int | None]]
    ) -> None:
        """Log fenced markers: expected only if a later coordinator has ended the transaction already."""
        for partition, code in outcomes:
            if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
                effect = ending.effect
                self._broker.limited_logger.write(
                    "markers rejected",
                    f"Broker {node_id} rejected a marker of {effect.transactional_id} (producer {effect.producer_id}, "
                    f"epoch {effect.epoch}) for {partition}: {ErrorCode(code).name}",
                )

    async def close(self) -> None:
        """Stop sending; the next coordinator sends the unwritten markers."""
        self._is_closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._endings.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _request(shares: Sequence[_Share]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(markers=[_marker(*share) for share in shares])


def _marker(ending: _Ending, partitions: Sequence[TopicPartition]) -> WriteTxnMarkersRequest.WritableTxnMarker:
    effect = ending.effect
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=effect.producer_id,
        producer_epoch=effect.epoch,
        transaction_result=effect.is_commit,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in topics.items()
        ],
        coordinator_epoch=ending.owner.coordinator_epoch,
        transaction_version=effect.transaction_version,
    )


def _codes(response: "WriteTxnMarkersResponse") -> dict[tuple[int, TopicPartition], int]:
    """Return error codes by producer id and partition; no two open transactions share a producer id."""
    return {
        (marker.producer_id, TopicPartition(topic.name, each.partition_index)): each.error_code
        for marker in response.markers
        for topic in marker.topics
        for each in topic.partitions
    }
