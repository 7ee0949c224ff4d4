"""Finding the way in a cluster: connections by address, metadata, the right broker for a request, another try."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from moldau.client.addresses import parse_bootstrap
from moldau.client.backoff import Backoff
from moldau.client.connection import Authentication
from moldau.client.errors import (
    PASSING,
    STALE_METADATA,
    ConnectionLost,
    NoAnswer,
    Unreachable,
    cannot_reach,
    error_of,
)
from moldau.client.link import Link
from moldau.client.metadata import BrokerView, Metadata, PartitionView, TopicView
from moldau.client.routing import first_error, version_limit
from moldau.client.settings import ClientSettings
from moldau.model.errors import BrokerNotAvailable, ErrorCode, KafkaError, UnknownTopicOrPartition
from moldau.model.ids import NO_NODE, Address, NodeId
from moldau.model.ports import Clock, Network, Random
from moldau.model.units import SECOND_MS
from moldau.wire import messages
from moldau.wire.messages import Message

Key = TypeVar("Key")
Result = TypeVar("Result")

UNKNOWN_PATIENCE_MS: Final = 2 * SECOND_MS  # news of a topic or broker just added may still be on its way
# After these the broker may have done what we asked, or may still.
_UNCERTAIN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
_FAILURES: Final = (KafkaError, ConnectionLost, NoAnswer, Unreachable)


class Cluster:
    """The brokers behind one or more bootstrap addresses."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        bootstrap: str | Sequence[Address],
        *,
        settings: ClientSettings | None = None,
        authentication: Callable[[], Authentication] | None = None,
    ) -> None:
        self.settings = settings or ClientSettings()
        self.metadata = Metadata()
        self._network = network
        self._clock = clock
        self._random = random
        self._bootstrap = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
        self._authentication = authentication
        self._links: dict[Address, Link] = {}
        self._doubted: set[NodeId] = set()  # brokers that were not where we thought
        self._opening: dict[Address, asyncio.Task[Link]] = {}
        self._lookups: dict[str, asyncio.Task[TopicView]] = {}
        self._is_closed = False

    # Asking

    async def send(
        self,
        request: Message,
        *,
        node: int | None = None,
        timeout_ms: float | None = None,
        version_at_most: int | None = None,
    ) -> Any:
        """Ask one broker once: that node, or any. None is the answer to a Produce with acks=0."""
        link = await (self._any_link() if node is None else self._link_to(NodeId(node)))
        await link.has_room()
        limits = [each for each in (version_at_most, version_limit(request)) if each is not None]
        return await link.ask(request, timeout_ms=timeout_ms, version_at_most=min(limits, default=None))

    async def send_to_leader(
        self,
        topic: str,
        partition: int,
        request: Message | Callable[[TopicView, PartitionView], Message],
        *,
        timeout_ms: float | None = None,
        total_timeout_ms: float | None = None,
        is_repeatable: bool = True,
    ) -> Any:
        """Ask the partition's leader, and again whoever leads next, until it answers or time is up.

        `request` may be a function of the topic and the partition, for requests that name a topic id or leader epoch.
        An answer with a lasting error is returned: what it means is the caller's business.
        """

        async def ask_once() -> Any:
            view = await self.topic(topic)
            target = self.metadata.leader(topic, partition)
            question = request if isinstance(request, Message) else request(view, target)
            response = await self.send(question, node=target.leader, timeout_ms=timeout_ms)
            code, words = first_error(response)
            if code in PASSING:
                raise error_of(code, words)
            return response

        return await self.persist(ask_once, about=topic, total_timeout_ms=total_timeout_ms, is_repeatable=is_repeatable)

    async def send_to_controller(self, request: Message, *, timeout_ms: float | None = None) -> Any:
        """Ask the controller where the cluster names one (brokers pass it on where it does not)."""
        if self.metadata.controller not in self.metadata.brokers:
            await self.refresh([])
        known = self.metadata.controller in self.metadata.brokers
        return await self.send(request, node=self.metadata.controller if known else None, timeout_ms=timeout_ms)

    async def persist(
        self,
        attempt: Callable[[], Awaitable[Result]],
        *,
        about: str | None = None,
        total_timeout_ms: float | None = None,
        is_repeatable: bool = True,
    ) -> Result:
        """Try until it works, the failure is one that will not pass, or time is up.

        After a failure that hints at old metadata, what we know `about` the topic is forgotten. With
        `is_repeatable=False` a request that a broker may have acted on is not sent again.
        """
        patience_ms = self.settings.total_timeout_ms if total_timeout_ms is None else total_timeout_ms
        backoff = self._backoff(patience_ms)
        began_ms = self._clock.monotonic_ms()
        while True:
            try:
                return await attempt()
            except _FAILURES as error:
                self._forget_stale(error, about)
                now_ms = self._clock.monotonic_ms()
                wait_ms = backoff.next_wait_ms(now_ms)
                if wait_ms is None or not self._may_pass(error, now_ms - began_ms, is_repeatable):
                    raise
            await asyncio.sleep(wait_ms / 1000)

    # Knowing

    async def topic(self, name: str) -> TopicView:
        """The topic as we know it, or as the cluster tells now. Many askers at once make one request."""
        known = self.metadata.fresh(name, self._clock.monotonic_ms(), self.settings.metadata_max_age_ms)
        if known is not None:
            return known
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = asyncio.get_running_loop().create_task(self._look_up(name))
            lookup.add_done_callback(lambda done: self._finished(self._lookups, name, done))
        return await asyncio.shield(lookup)

    async def refresh(self, names: Iterable[str] | None = None, *, creates: bool | None = None) -> list[TopicView]:
        """Ask the cluster for its brokers and these topics (None: all). Topics with errors are among the result."""
        wanted = None if names is None else list(names)
        return await self.persist(lambda: self._ask_metadata(wanted, creates))

    async def brokers(self) -> list[BrokerView]:
        await self.refresh([])
        return sorted(self.metadata.brokers.values(), key=lambda each: each.node_id)

    async def feature(self, name: str) -> int:
        """The level of a feature that the cluster has finalized; 0 where it knows none of that name."""
        await self.refresh([])
        return max((each.features.get(name, 0) for each in self._links.values() if not each.is_closed), default=0)

    async def _ask_metadata(self, names: list[str] | None, creates: bool | None) -> list[TopicView]:
        wanted = None if names is None else [messages.MetadataRequest.MetadataRequestTopic(name=each) for each in names]
        may_create = self.settings.creates_topics if creates is None else creates
        request = messages.MetadataRequest(topics=wanted, allow_auto_topic_creation=may_create and bool(wanted))
        response = await self.send(request)
        topics = self.metadata.update(response, self._clock.monotonic_ms())
        if wanted is None:
            self.metadata.forget_except(each.name for each in topics)
        return topics

    async def _look_up(self, name: str) -> TopicView:
        (topic,) = await self._ask_metadata([name], None)
        if topic.error is not None:
            raise topic.error
        return topic

    # Trying again

    def _backoff(self, patience_ms: float) -> Backoff:
        first, longest = self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms
        return Backoff(self._random, first, longest, self._clock.monotonic_ms() + patience_ms)

    def _forget_stale(self, error: BaseException, about: str | None) -> None:
        # A lost connection may mean a lost leader.
        is_stale = not isinstance(error, KafkaError) or error.code in STALE_METADATA
        if is_stale and about is not None:
            self.metadata.forget(about)
        if not isinstance(error, KafkaError) or error.code == ErrorCode.NOT_CONTROLLER:
            self.metadata.controller = NO_NODE  # perhaps it was this one that we lost

    def _may_pass(self, error: BaseException, tried_ms: float, is_repeatable: bool) -> bool:
        if self._is_closed:
            return False
        if isinstance(error, Unreachable):
            return bool(self.metadata.brokers)  # a cluster that never answered is a wrong address: say so at once
        if isinstance(error, ConnectionLost | NoAnswer):
            return (is_repeatable or not error.was_sent) and bool(self.metadata.brokers)
        if isinstance(error, UnknownTopicOrPartition | BrokerNotAvailable):
            return tried_ms < UNKNOWN_PATIENCE_MS
        if isinstance(error, KafkaError):
            return error.code in PASSING and (is_repeatable or error.code not in _UNCERTAIN)
        return False

    # Connections

    async def _link_to(self, node: NodeId) -> Link:
        if node not in self.metadata.brokers or node in self._doubted:
            await self.refresh([])
            self._doubted.discard(node)
        broker = self.metadata.brokers.get(node)
        if broker is None:
            raise BrokerNotAvailable(f"the cluster has no broker {node} at the moment")
        try:
            return await self._link_at(broker.address)
        except ConnectionLost:
            raise
        except OSError as error:
            self._doubted.add(node)  # it may have another address by now
            raise cannot_reach([(broker.address, error)]) from error

    async def _any_link(self) -> Link:
        """An open connection if there is one; else whoever answers first of the brokers we know, then the bootstrap."""
        is_open = next((each for each in self._links.values() if not each.is_closed), None)
        if is_open is not None:
            return is_open
        failures: list[tuple[Address, BaseException]] = []
        for address in self._candidates():
            try:
                return await self._link_at(address)
            except ConnectionLost:
                raise
            except OSError as error:
                failures.append((address, error))
        raise cannot_reach(failures)

    def _candidates(self) -> list[Address]:
        known = self._shuffled([each.address for each in self.metadata.brokers.values()])
        return list(dict.fromkeys([*known, *self._shuffled(self._bootstrap)]))

    def _shuffled(self, addresses: Sequence[Address]) -> list[Address]:
        left, mixed = list(addresses), []
        while left:
            mixed.append(left.pop(self._random.randrange(0, len(left))))
        return mixed

    async def _link_at(self, address: Address) -> Link:
        if self._is_closed:
            raise ConnectionLost("this client is closed", was_sent=False)
        link = self._links.get(address)
        if link is not None and not link.is_closed:
            return link
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.get_running_loop().create_task(self._open(address))
            opening.add_done_callback(lambda done: self._finished(self._opening, address, done))
        # Others may wait for the same connection: one who stops waiting must not stop it.
        return await asyncio.shield(opening)

    def _finished(self, tasks: dict[Key, asyncio.Task[Result]], key: Key, task: asyncio.Task[Result]) -> None:
        tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited heard of it; if nobody waits any more, nobody needs to

    async def _open(self, address: Address) -> Link:
        link = Link(address, self._clock, self.settings, self._authentication() if self._authentication else None)
        await link.open(self._network)
        self._links[address] = link
        return link

    async def close(self) -> None:
        """Close every connection, for good; what still waits for an answer fails."""
        self._is_closed = True
        tasks = [*self._opening.values(), *self._lookups.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.close() for link in links))
