"""The end of transactions, told to their partitions: markers are sent to those who lead them until each is written."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.transactions import SendMarkers
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_NODE, TopicPartition
from moldau.model.units import SECOND_MS
from moldau.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

PARTITIONS_PER_REQUEST: Final = 2_000
REQUESTS_PER_BROKER: Final = 4  # under way at the same time: one partition that is slow does not hold up all others
ASK_MS: Final = 15 * SECOND_MS  # more than a partition waits for its replicas
RETRY_S: Final = 0.1
PURPOSE: Final = "markers"

# A partition that has seen a later epoch of the producer is past this transaction: it would refuse the marker for ever,
# and for ever nobody could use the transactional id.
_TOLD: Final = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)


class MarkersOwner(Protocol):
    """The shard that decided how transactions end."""

    @property
    def coordinator_epoch(self) -> int:
        """By which partitions refuse the markers of a former coordinator."""
        ...

    def all_marked(self, effect: SendMarkers) -> None:
        """Every partition has its marker, or is gone."""
        ...


class _Ending:
    """One transaction that ends, and the partitions that have not heard of it."""

    __slots__ = ("effect", "left", "owner")

    def __init__(self, owner: MarkersOwner, effect: SendMarkers) -> None:
        self.owner = owner
        self.effect = effect
        self.left: dict[TopicPartition, None] = dict.fromkeys(effect.partitions)


_Share = tuple[_Ending, list[TopicPartition]]  # what of an ending is sent in one request


class _Route:
    """What waits to be sent to one broker, and the lanes in which requests are under way to it."""

    __slots__ = ("is_about_to_send", "lanes", "queue")

    def __init__(self) -> None:
        self.queue: dict[_Ending, list[TopicPartition]] = {}
        self.lanes: set[int] = set()
        self.is_about_to_send = False  # in the next turn of the loop, with all that is queued until then


class Markers:
    """All markers of this broker's shards. There are no more of them than there are transactions that end."""

    def __init__(self, broker: CoordinatorHost, on_failure: Callable[[str, BaseException], None]) -> None:
        self._broker = broker
        self._on_failure = on_failure
        self._endings: dict[tuple[MarkersOwner, str], _Ending] = {}
        self._routes: dict[int, _Route] = {}
        self._again: list[_Share] = []
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._image = MetadataImage()
        self._knows_all = False
        self._is_closed = False
        self.backlog = 0  # partitions that wait for their markers
        self.ended: Counter[bool] = Counter()  # transactions, by whether they were committed

    # What there is

    def see(self, image: MetadataImage) -> None:
        """The newest metadata: at least as new as what made this broker coordinate what it does."""
        self._image = image

    def start(self) -> None:
        """From now on a topic that is not in the metadata is gone; before, this life may not have heard of it yet."""
        self._knows_all = True

    def _leader(self, partition: TopicPartition) -> int | None:
        """None where the partition is gone for good."""
        where = self._image.partition(*partition)
        if where is None:
            return None if self._knows_all else NO_NODE
        return where.leader

    # Who has to hear of it

    def send(self, owner: MarkersOwner, effect: SendMarkers) -> None:
        """Until all partitions have it. The same again, after its shard was loaded anew, takes the place of the old."""
        if self._is_closed:
            return
        self._drop((owner, effect.transactional_id))
        ending = self._endings[owner, effect.transactional_id] = _Ending(owner, effect)
        self.backlog += len(ending.left)
        self._queue(ending, effect.partitions)

    def forget(self, owner: MarkersOwner) -> None:
        """Another broker coordinates these transactions, and sends their markers."""
        for key in [key for key in self._endings if key[0] is owner]:
            self._drop(key)

    def _drop(self, key: tuple[MarkersOwner, str]) -> None:
        ending = self._endings.pop(key, None)
        if ending is not None:
            self.backlog -= len(ending.left)

    def _is_current(self, ending: _Ending) -> bool:
        return self._endings.get((ending.owner, ending.effect.transactional_id)) is ending

    def _queue(self, ending: _Ending, partitions: Iterable[TopicPartition]) -> None:
        """Each with those for the broker that leads it, now or as soon as somebody does."""
        gone, homeless = [], []
        for partition in partitions:
            leader = self._leader(partition)
            if leader is None:
                gone.append(partition)
            elif leader == NO_NODE:
                homeless.append(partition)
            else:
                route = self._routes.setdefault(leader, _Route())
                route.queue.setdefault(ending, []).append(partition)
                self._begin(leader, route)
        if gone:  # not at once: whoever has just decided may not be asked to decide again before it is done
            asyncio.get_running_loop().call_soon(self._written, ending, gone)
        if homeless:
            self._try_again([(ending, homeless)])

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

    def _begin(self, node_id: int, route: _Route) -> None:
        """Those of one turn of the loop go together: a task begins in the next."""
        lane = next((lane for lane in range(REQUESTS_PER_BROKER) if lane not in route.lanes), None)
        if lane is None or route.is_about_to_send:
            return
        route.lanes.add(lane)
        route.is_about_to_send = True
        task = asyncio.get_running_loop().create_task(self._drain(node_id, route, lane))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _drain(self, node_id: int, route: _Route, lane: int) -> None:
        try:
            while shares := self._take(node_id, route):
                await self._deliver(node_id, shares, lane)
        except Exception as error:
            self._on_failure("markers of transactions could not be sent", error)
        finally:
            route.lanes.discard(lane)

    def _take(self, node_id: int, route: _Route) -> list[_Share]:
        """As many as fit into a request. A partition that another broker leads by now is queued there."""
        route.is_about_to_send = False
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
        """What was not written is tried again after a while, wherever its leader is then."""
        try:
            codes = _codes(await self._ask(node_id, _request(shares), lane))
        except (KafkaError, OSError):
            self._try_again(shares)
            return
        for ending, partitions in shares:
            outcomes = [(each, codes.get((ending.effect.producer_id, each))) for each in partitions]
            left = [each for each, code in outcomes if code not in _TOLD]
            self._complain(node_id, ending, outcomes)
            self._written(ending, [each for each, code in outcomes if code in _TOLD])
            if left:
                self._try_again([(ending, left)])

    async def _ask(self, node_id: int, request: WriteTxnMarkersRequest, lane: int) -> WriteTxnMarkersResponse:
        if node_id == self._broker.node_id:
            response: WriteTxnMarkersResponse = await self._broker.local.handle(request)
            return response
        registered = self._image.brokers.get(node_id)
        address = None if registered is None else registered.address(self._broker.inter_broker_listener)
        if address is None:
            raise ConnectionError(f"broker {node_id} cannot be reached")
        answer: WriteTxnMarkersResponse = await self._broker.peers.ask(
            address, request, timeout_ms=ASK_MS, purpose=f"{PURPOSE}-{lane}"
        )
        return answer

    # Trying again

    def _try_again(self, shares: Iterable[_Share]) -> None:
        self._again += shares
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._retry_all)

    def _retry_all(self) -> None:
        self._retry = None
        again, self._again = self._again, []
        for ending, partitions in again:
            if self._is_current(ending):
                self._queue(ending, partitions)

    def _complain(self, node_id: int, ending: _Ending, outcomes: Sequence[tuple[TopicPartition, int | None]]) -> None:
        """That a partition has another leader or too few replicas passes. That it refuses the marker should not be, but
        where a later coordinator has ended the transaction and this one has not heard of it yet.
        """
        for partition, code in outcomes:
            if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
                effect = ending.effect
                self._broker.limited_logger.write(
                    "markers refused",
                    f"Broker {node_id} refuses the marker of {effect.transactional_id} (producer {effect.producer_id}, "
                    f"epoch {effect.epoch}) for {partition}: {ErrorCode(code).name}",
                )

    async def close(self) -> None:
        """What is not written will be sent by whoever coordinates next."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
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


def _codes(answer: Any) -> dict[tuple[int, TopicPartition], int]:
    """No two transactions share a producer id."""
    return {
        (marker.producer_id, TopicPartition(topic.name, each.partition_index)): each.error_code
        for marker in answer.markers
        for topic in marker.topics
        for each in topic.partitions
    }
