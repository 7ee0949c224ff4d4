"""Finding the way in a cluster: connections by address, metadata, the right broker for a request, another try."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from moldau.client.addresses import parse_bootstrap
from moldau.client.backoff import Backoff
from moldau.client.broker_ranking import Preferences
from moldau.client.call_context import UNDER_WAY, Call
from moldau.client.connection import Authentication
from moldau.client.errors import (
    PASSING,
    STALE_METADATA,
    ConnectionLost,
    NoAnswer,
    Unreachable,
    cannot_reach,
    cannot_reach_broker,
    error_of,
)
from moldau.client.leader_requests import first_error, may_be_stored, version_limit
from moldau.client.link import Link
from moldau.client.metadata import BrokerView, Metadata, NoSuchPartition, PartitionView, TopicView
from moldau.client.settings import ClientSettings
from moldau.model.errors import BrokerNotAvailable, ErrorCode, KafkaError, UnknownTopicOrPartition
from moldau.model.ids import NO_NODE, Address, NodeId
from moldau.model.ports import Clock, Network, Random
from moldau.model.units import SECOND_MS
from moldau.wire import codec, messages
from moldau.wire.messages import Message

Key = TypeVar("Key")
Result = TypeVar("Result")

METADATA: Final = 3
UNKNOWN_PATIENCE_MS: Final = 2 * SECOND_MS  # news of a topic or broker just added may still be on its way
CREATION_PATIENCE_MS: Final = 10 * SECOND_MS  # a topic that the look-up itself has created
# After these the broker may have done what we asked, or may still.
_UNCERTAIN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
# A leader that hears nothing of its followers may be the one that is cut off.
_SUSPECT: Final = STALE_METADATA | {ErrorCode.REQUEST_TIMED_OUT}
_FAILURES: Final = (KafkaError, ConnectionLost, NoAnswer, Unreachable)


class _Question(NamedTuple):
    """A request, and how it is to be asked."""

    request: Message
    timeout_ms: float | None
    version_at_most: int | None
    version_at_least: int


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
        self._preferences = Preferences()
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
        version_at_least: int = 0,
    ) -> Any:
        """Ask one broker once: that node, or any. None is the answer to a Produce with acks=0."""
        limits = [each for each in (version_at_most, version_limit(request)) if each is not None]
        question = _Question(request, timeout_ms, min(limits, default=None), version_at_least)
        if node is not None:
            return await self._ask(await self._link_to(NodeId(node)), question)
        _, response = await self._ask_any(question)
        return response

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
            target = self.metadata.leader_in(view, partition)
            question = request if isinstance(request, Message) else request(view, target)
            response = await self.send(question, node=target.leader, timeout_ms=timeout_ms)
            code, words = first_error(response)
            if code in PASSING and (is_repeatable or not may_be_stored(question, code)):
                raise error_of(code, words)
            if code in STALE_METADATA:
                self._forget(view, is_outdated=True)
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
        about: str | Collection[str] = (),
        total_timeout_ms: float | None = None,
        is_repeatable: bool = True,
        final: Collection[ErrorCode] = (),
    ) -> Result:
        """Try until it works, the failure is one that will not pass, or time is up.

        After a failure that hints at old metadata, what the try went by is forgotten `about` these topics. With
        `is_repeatable=False` a request that a broker may have acted on is not sent again; nor is any after an error
        of `final`.
        """
        topics = frozenset([about] if isinstance(about, str) else about)
        with self.within(total_timeout_ms) as call:
            backoff = self._backoff(call)
            while True:
                call.begin_try()
                try:
                    return await attempt()
                except _FAILURES as error:
                    self._forget_stale(error, topics, call)
                    now_ms = self._clock.monotonic_ms()
                    wait_ms = backoff.next_wait_ms(now_ms)
                    is_final = isinstance(error, KafkaError) and error.code in final
                    if is_final or wait_ms is None or not self._may_pass(error, topics, call, is_repeatable):
                        raise
                await asyncio.sleep(wait_ms / 1000)

    @contextmanager
    def within(self, total_timeout_ms: float | None) -> Iterator[Call]:
        """All that is asked in here ends after this time, and with the call that it is a part of."""
        patience_ms = self.settings.total_timeout_ms if total_timeout_ms is None else total_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + patience_ms
        whole = UNDER_WAY.get()
        call = Call(deadline_ms if whole is None else min(deadline_ms, whole.deadline_ms))
        before = UNDER_WAY.set(call)
        try:
            yield call
        finally:
            UNDER_WAY.reset(before)

    # Knowing

    async def topic(self, name: str) -> TopicView:
        """The topic as we know it, or as the cluster tells now. Many askers at once make one request."""
        view = self.metadata.fresh(name, self._clock.monotonic_ms(), self.settings.metadata_max_age_ms)
        if view is None:
            view = await self.in_time(self._shared_look_up(name), f"nobody told of topic {name} in time")
        call = UNDER_WAY.get()
        if call is not None:
            call.go_by(view)
        return view

    def _shared_look_up(self, name: str) -> asyncio.Future[TopicView]:
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = asyncio.get_running_loop().create_task(self._look_up(name))
            lookup.add_done_callback(lambda done: self._finished(self._lookups, name, done))
        return asyncio.shield(lookup)

    def look_again(self, name: str, *, is_outdated: bool) -> None:
        """The next look at this topic asks the cluster, and where what we know was old, rather another broker."""
        view = self.metadata.topics.get(name)
        if view is not None:
            self._forget(view, is_outdated)

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
        teller, response = await self._ask_any(_Question(request, None, None, 0))
        topics = self.metadata.update(response, self._clock.monotonic_ms(), teller)
        if wanted is None:
            self.metadata.forget_except(each.name for each in topics)
        return topics

    async def _look_up(self, name: str) -> TopicView:
        UNDER_WAY.set(None)  # one call began it, but others wait for it too
        (topic,) = await self._ask_metadata([name], None)
        if topic.error is not None:
            if topic.error.code in STALE_METADATA:
                self._forget(topic, is_outdated=True)
            raise topic.error
        return topic

    # Trying again

    def _backoff(self, call: Call) -> Backoff:
        first, longest = self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms
        return Backoff(self._random, first, longest, call.deadline_ms)

    def _forget_stale(self, error: BaseException, topics: frozenset[str], call: Call) -> None:
        # A lost connection may mean a lost leader.
        is_stale = not isinstance(error, KafkaError) or error.code in _SUSPECT
        for view in [each for each in call.used.values() if is_stale and each.name in topics]:
            self._forget(view, isinstance(error, KafkaError))
        if not isinstance(error, KafkaError) or error.code == ErrorCode.NOT_CONTROLLER:
            self.metadata.controller = NO_NODE  # perhaps it was this one that we lost

    def _forget(self, view: TopicView, is_outdated: bool) -> None:
        self.metadata.forget(view.name, view)
        if is_outdated and view.told_by is not None:
            self._preferences.distrust(view.told_by)

    def _may_pass(self, error: BaseException, topics: frozenset[str], call: Call, is_repeatable: bool) -> bool:
        if self._is_closed:
            return False
        if isinstance(error, UnknownTopicOrPartition | BrokerNotAvailable):
            return self._may_appear(error, topics, call)
        call.unknown_since_ms = None
        if isinstance(error, Unreachable):
            return bool(self.metadata.brokers)  # a cluster that never answered is a wrong address: say so at once
        if isinstance(error, ConnectionLost | NoAnswer):
            return (is_repeatable or not error.was_sent) and bool(self.metadata.brokers)
        if isinstance(error, KafkaError):
            return error.code in PASSING and (is_repeatable or error.code not in _UNCERTAIN)
        return False

    def _may_appear(self, error: BaseException, topics: frozenset[str], call: Call) -> bool:
        """What this call has seen before will be seen again; what nobody has seen may soon be there."""
        if topics and topics <= call.known and not isinstance(error, NoSuchPartition):
            return True
        patience_ms = CREATION_PATIENCE_MS if self.settings.creates_topics else UNKNOWN_PATIENCE_MS
        return call.unknown_ms(self._clock.monotonic_ms()) < patience_ms

    async def in_time(self, waiting: Awaitable[Result], late: str, *, was_sent: bool = False) -> Result:
        """What a call waits for, until its time is up."""
        call = UNDER_WAY.get()
        if call is None:
            return await waiting
        limit = asyncio.timeout(max(0.0, call.deadline_ms - self._clock.monotonic_ms()) / 1000)
        try:
            async with limit:
                return await waiting
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoAnswer(late, was_sent=was_sent) from None

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
        except (ConnectionLost, NoAnswer):
            raise
        except OSError as error:
            self._doubted.add(node)  # it may have another address by now
            if broker.address in self._bootstrap:
                raise cannot_reach([(broker.address, error)]) from error
            raise cannot_reach_broker(node, broker.address, error) from error

    async def _ask(self, link: Link, question: _Question) -> Any:
        name = codec.api_name(question.request.API_KEY)
        try:
            await self.in_time(link.has_room(question.timeout_ms), f"{link.address} did not take {name} in time")
            answer = link.ask(
                question.request,
                timeout_ms=question.timeout_ms,
                version_at_most=question.version_at_most,
                version_at_least=question.version_at_least,
            )
            return await self.in_time(answer, f"{link.address} did not answer {name} in time", was_sent=True)
        except (ConnectionLost, NoAnswer):
            self._preferences.lost(link.address, self._clock.monotonic_ms())
            raise

    async def _ask_any(self, question: _Question) -> tuple[Address, Any]:
        """Whoever answers first: an open connection if there is one, then the brokers we know, then the bootstrap.

        While no broker is known, one that takes the connection and says nothing is as good as none.
        """
        failures: list[tuple[Address, BaseException]] = []
        for address in self._candidates():
            try:
                link = await self._link_at(address)
            except (ConnectionLost, NoAnswer):
                raise
            except OSError as error:
                failures.append((address, error))
                continue
            try:
                return address, await self._ask(link, question)
            except (ConnectionLost, NoAnswer) as error:
                may_have_acted = error.was_sent and question.request.API_KEY != METADATA
                if may_have_acted or self.metadata.brokers or self._is_closed or self._is_late():
                    raise
                failures.append((address, error))
        if len(failures) == 1 and isinstance(failures[0][1], ConnectionLost | NoAnswer):
            raise failures[0][1]
        raise cannot_reach(failures)

    def _is_late(self) -> bool:
        call = UNDER_WAY.get()
        return call is not None and self._clock.monotonic_ms() >= call.deadline_ms

    def _candidates(self) -> list[Address]:
        is_open = [address for address, link in self._links.items() if not link.is_closed]
        known = self._shuffled([each.address for each in self.metadata.brokers.values()])
        return sorted(dict.fromkeys([*is_open, *known, *self._shuffled(self._bootstrap)]), key=self._rank)

    def _rank(self, address: Address) -> tuple[bool, int, bool, bool]:
        """An open connection on which nothing waits comes first: one that waits may wait for a broker that hangs."""
        link = self._links.get(address)
        is_open = link is not None and not link.is_closed
        is_busy = link is not None and not link.is_idle
        return (*self._preferences.rank(address, self._clock.monotonic_ms()), not is_open, is_busy)

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
        return await self.in_time(asyncio.shield(opening), f"no connection to {address} in time")

    def _finished(self, tasks: dict[Key, asyncio.Task[Result]], key: Key, task: asyncio.Task[Result]) -> None:
        tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited heard of it; if nobody waits any more, nobody needs to

    async def _open(self, address: Address) -> Link:
        link = Link(address, self._clock, self.settings, self._authentication() if self._authentication else None)
        try:
            await link.open(self._network)
        except (UnicodeError, OverflowError) as error:  # a name or a port that cannot even be looked up
            raise OSError(f"not an address that can be connected to: {error}") from error
        except OSError:
            self._preferences.lost(address, self._clock.monotonic_ms())
            raise
        self._preferences.found(address)
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
