"""Connections, metadata and retries: routes each request to the right broker of a cluster."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from moldau.client.addresses import parse_bootstrap
from moldau.client.backoff import Backoff
from moldau.client.broker_ranking import BrokerRanking
from moldau.client.call_context import CURRENT_CALL, CallContext
from moldau.client.errors import (
    RETRIABLE,
    STALE_METADATA,
    ConnectionLost,
    ResponseTimeout,
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
from moldau.wire.messages import Request, Response

Key = TypeVar("Key")
Result = TypeVar("Result")

METADATA: Final = 3
UNKNOWN_TIMEOUT_MS: Final = 2 * SECOND_MS  # metadata of a new topic or broker may not have reached every broker yet
CREATION_TIMEOUT_MS: Final = 10 * SECOND_MS  # for a topic that the lookup itself creates
# After these errors the broker may have executed the request, or may still do so.
_UNCERTAIN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
# A leader that cannot reach its followers may itself be behind a network partition.
_SUSPECT: Final = STALE_METADATA | {ErrorCode.REQUEST_TIMED_OUT}
_FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable)


class _OutboundRequest(NamedTuple, Generic[Response]):
    """A request with its timeout and version bounds."""

    request: Request[Response]
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
    ) -> None:
        self.settings = settings or ClientSettings()
        self.metadata = Metadata()
        self._network = network
        self._clock = clock
        self._random = random
        self._bootstrap = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
        self._links: dict[Address, Link] = {}
        self._suspect_nodes: set[NodeId] = set()  # unreachable at their last known address
        self._ranking = BrokerRanking()
        self._opening: dict[Address, asyncio.Task[Link]] = {}
        self._lookups: dict[str, asyncio.Task[TopicView]] = {}
        self._is_closed = False

    # Requests

    async def send(
        self,
        request: Request[Response],
        *,
        node: int | None = None,
        timeout_ms: float | None = None,
        version_at_most: int | None = None,
        version_at_least: int = 0,
    ) -> Response:
        """Send a request to one broker, once: to `node`, or to any. Returns None for a Produce with acks=0."""
        limits = [each for each in (version_at_most, version_limit(request)) if each is not None]
        outbound = _OutboundRequest(request, timeout_ms, min(limits, default=None), version_at_least)
        if node is not None:
            return await self._send(await self._link_to(NodeId(node)), outbound)
        _, response = await self._send_to_any(outbound)
        return response

    async def send_to_leader(
        self,
        topic: str,
        partition: int,
        request: Request[Response] | Callable[[TopicView, PartitionView], Request[Response]],
        *,
        timeout_ms: float | None = None,
        total_timeout_ms: float | None = None,
        is_idempotent: bool = True,
    ) -> Response:
        """Send a request to the partition leader; retry, also after a change of leader, until it succeeds or times out.

        `request` may be a function of topic and partition, for requests with a topic id or leader epoch. A response
        with a non-retriable error is returned to the caller.
        """

        async def attempt_once() -> Response:
            view = await self.topic(topic)
            target = self.metadata.leader_in(view, partition)
            outbound = request if isinstance(request, Request) else request(view, target)
            response = await self.send(outbound, node=target.leader, timeout_ms=timeout_ms)
            code, message = first_error(response)
            if code in RETRIABLE and (is_idempotent or not may_be_stored(outbound, code)):
                raise error_of(code, message)
            if code in STALE_METADATA:
                self._forget(view, is_stale=True)
            return response

        return await self.retry(
            attempt_once, about=topic, total_timeout_ms=total_timeout_ms, is_idempotent=is_idempotent
        )

    async def send_to_controller(self, request: Request[Response], *, timeout_ms: float | None = None) -> Response:
        """Send a request to the controller, or to any broker (which forwards it) if the controller is unknown."""
        if self.metadata.controller not in self.metadata.brokers:
            await self.refresh([])
        known = self.metadata.controller in self.metadata.brokers
        return await self.send(request, node=self.metadata.controller if known else None, timeout_ms=timeout_ms)

    async def retry(
        self,
        attempt: Callable[[], Awaitable[Result]],
        *,
        about: str | Collection[str] = (),
        total_timeout_ms: float | None = None,
        is_idempotent: bool = True,
        final: Collection[ErrorCode] = (),
    ) -> Result:
        """Call `attempt` until it succeeds, fails with a non-retriable error, or the deadline passes.

        After an error that indicates stale metadata, the metadata used by the attempt is invalidated for the topics in
        `about`. With `is_idempotent=False`, a request that a broker may have executed is not retried. An error in
        `final` is never retried.
        """
        topics = frozenset([about] if isinstance(about, str) else about)
        with self.deadline(total_timeout_ms) as call:
            backoff = self._backoff(call)
            while True:
                call.begin_attempt()
                try:
                    return await attempt()
                except _FAILURES as error:
                    self._forget_stale(error, topics, call)
                    now_ms = self._clock.monotonic_ms()
                    wait_ms = backoff.next_wait_ms(now_ms)
                    is_final = isinstance(error, KafkaError) and error.code in final
                    if is_final or wait_ms is None or not self._is_retriable(error, topics, call, is_idempotent):
                        raise
                await asyncio.sleep(wait_ms / 1000)

    @contextmanager
    def deadline(self, total_timeout_ms: float | None) -> Iterator[CallContext]:
        """Apply a deadline to every request in the block, bounded by the deadline of the enclosing call."""
        timeout_limit_ms = self.settings.total_timeout_ms if total_timeout_ms is None else total_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_limit_ms
        whole = CURRENT_CALL.get()
        call = CallContext(deadline_ms if whole is None else min(deadline_ms, whole.deadline_ms))
        before = CURRENT_CALL.set(call)
        try:
            yield call
        finally:
            CURRENT_CALL.reset(before)

    # Metadata

    async def topic(self, name: str) -> TopicView:
        """Return the topic from the cache or the cluster. Concurrent lookups share one request."""
        view = self.metadata.fresh(name, self._clock.monotonic_ms(), self.settings.metadata_max_age_ms)
        if view is None:
            view = await self.before_deadline(self._shared_lookup(name), f"metadata of topic {name} timed out")
        call = CURRENT_CALL.get()
        if call is not None:
            call.record_view(view)
        return view

    def _shared_lookup(self, name: str) -> asyncio.Future[TopicView]:
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = asyncio.get_running_loop().create_task(self._look_up_topic(name))
            lookup.add_done_callback(lambda done: self._forget_task(self._lookups, name, done))
        return asyncio.shield(lookup)

    def invalidate_topic(self, name: str, *, is_stale: bool) -> None:
        """Invalidate the cached topic; if it was stale, the next lookup prefers another broker."""
        view = self.metadata.topics.get(name)
        if view is not None:
            self._forget(view, is_stale)

    async def refresh(self, names: Iterable[str] | None = None, *, may_create: bool | None = None) -> list[TopicView]:
        """Fetch the brokers and these topics (None: all) from the cluster. The result includes topics with errors."""
        wanted = None if names is None else list(names)
        return await self.retry(lambda: self._fetch_metadata(wanted, may_create))

    async def brokers(self) -> list[BrokerView]:
        await self.refresh([])
        return sorted(self.metadata.brokers.values(), key=lambda each: each.node_id)

    async def feature(self, name: str) -> int:
        """Return the finalized level of a feature, 0 if the cluster does not have it."""
        await self.refresh([])
        return max((each.features.get(name, 0) for each in self._links.values() if not each.is_closed), default=0)

    async def _fetch_metadata(self, names: list[str] | None, may_create: bool | None) -> list[TopicView]:
        wanted = None if names is None else [messages.MetadataRequest.MetadataRequestTopic(name=each) for each in names]
        allows_creation = self.settings.allow_auto_create_topics if may_create is None else may_create
        request = messages.MetadataRequest(topics=wanted, allow_auto_topic_creation=allows_creation and bool(wanted))
        source, response = await self._send_to_any(_OutboundRequest(request, None, None, 0))
        topics = self.metadata.update(response, self._clock.monotonic_ms(), source)
        if wanted is None:
            self.metadata.forget_except(each.name for each in topics)
        return topics

    async def _look_up_topic(self, name: str) -> TopicView:
        CURRENT_CALL.set(None)  # started by one call, but shared with others
        (topic,) = await self._fetch_metadata([name], None)
        if topic.error is not None:
            if topic.error.code in STALE_METADATA:
                self._forget(topic, is_stale=True)
            raise topic.error
        return topic

    # Retries

    def _backoff(self, call: CallContext) -> Backoff:
        first, longest = self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms
        return Backoff(self._random, first, longest, call.deadline_ms)

    def _forget_stale(self, error: BaseException, topics: frozenset[str], call: CallContext) -> None:
        # A lost connection may mean that the leader failed.
        is_stale = not isinstance(error, KafkaError) or error.code in _SUSPECT
        for view in [each for each in call.used.values() if is_stale and each.name in topics]:
            self._forget(view, isinstance(error, KafkaError))
        if not isinstance(error, KafkaError) or error.code == ErrorCode.NOT_CONTROLLER:
            self.metadata.controller = NO_NODE  # the lost broker may have been the controller

    def _forget(self, view: TopicView, is_stale: bool) -> None:
        self.metadata.forget(view.name, view)
        if is_stale and view.source is not None:
            self._ranking.mark_stale(view.source)

    def _is_retriable(
        self, error: BaseException, topics: frozenset[str], call: CallContext, is_idempotent: bool
    ) -> bool:
        if self._is_closed:
            return False
        if isinstance(error, UnknownTopicOrPartition | BrokerNotAvailable):
            return self._may_become_known(error, topics, call)
        call.unknown_since_ms = None
        if isinstance(error, Unreachable):
            return bool(self.metadata.brokers)  # never reached: probably a wrong address, so fail at once
        if isinstance(error, ConnectionLost | ResponseTimeout):
            return (is_idempotent or not error.was_sent) and bool(self.metadata.brokers)
        if isinstance(error, KafkaError):
            return error.code in RETRIABLE and (is_idempotent or error.code not in _UNCERTAIN)
        return False

    def _may_become_known(self, error: BaseException, topics: frozenset[str], call: CallContext) -> bool:
        """Return whether a missing topic or broker may appear: this call has seen it before, or it may be new."""
        if topics and topics <= call.known and not isinstance(error, NoSuchPartition):
            return True
        timeout_limit_ms = CREATION_TIMEOUT_MS if self.settings.allow_auto_create_topics else UNKNOWN_TIMEOUT_MS
        return call.unknown_ms(self._clock.monotonic_ms()) < timeout_limit_ms

    async def before_deadline(
        self, waiting: Awaitable[Result], timeout_message: str, *, was_sent: bool = False
    ) -> Result:
        """Wait until the deadline of the current call."""
        call = CURRENT_CALL.get()
        if call is None:
            return await waiting
        limit = asyncio.timeout(max(0.0, call.deadline_ms - self._clock.monotonic_ms()) / 1000)
        try:
            async with limit:
                return await waiting
        except TimeoutError:
            if not limit.expired():
                raise
            raise ResponseTimeout(timeout_message, was_sent=was_sent) from None

    # Connections

    async def _link_to(self, node: NodeId) -> Link:
        if node not in self.metadata.brokers or node in self._suspect_nodes:
            await self.refresh([])
            self._suspect_nodes.discard(node)
        broker = self.metadata.brokers.get(node)
        if broker is None:
            raise BrokerNotAvailable(f"the cluster has no broker {node} at the moment")
        try:
            return await self._link_at(broker.address)
        except (ConnectionLost, ResponseTimeout):
            raise
        except OSError as error:
            self._suspect_nodes.add(node)  # its address may have changed
            if broker.address in self._bootstrap:
                raise cannot_reach([(broker.address, error)]) from error
            raise cannot_reach_broker(node, broker.address, error) from error

    async def _send(self, link: Link, outbound: _OutboundRequest[Response]) -> Response:
        name = codec.api_name(outbound.request.API_KEY)
        try:
            await self.before_deadline(
                link.wait_for_room(outbound.timeout_ms), f"{link.address} accepted no data, {name} timed out"
            )
            response = link.send(
                outbound.request,
                timeout_ms=outbound.timeout_ms,
                version_at_most=outbound.version_at_most,
                version_at_least=outbound.version_at_least,
            )
            return await self.before_deadline(
                response, f"{link.address} did not respond to {name} in time", was_sent=True
            )
        except (ConnectionLost, ResponseTimeout):
            self._ranking.mark_unreachable(link.address, self._clock.monotonic_ms())
            raise

    async def _send_to_any(self, outbound: _OutboundRequest[Response]) -> tuple[Address, Response]:
        """Send to the first available broker: open connections first, then known brokers, then the bootstrap servers.

        While no broker is known, one that accepts the connection but does not respond counts as unreachable.
        """
        failures: list[tuple[Address, BaseException]] = []
        for address in self._candidates():
            try:
                link = await self._link_at(address)
            except (ConnectionLost, ResponseTimeout):
                raise
            except OSError as error:
                failures.append((address, error))
                continue
            try:
                return address, await self._send(link, outbound)
            except (ConnectionLost, ResponseTimeout) as error:
                may_have_acted = error.was_sent and outbound.request.API_KEY != METADATA
                if may_have_acted or self.metadata.brokers or self._is_closed or self._is_late():
                    raise
                failures.append((address, error))
        if len(failures) == 1 and isinstance(failures[0][1], ConnectionLost | ResponseTimeout):
            raise failures[0][1]
        raise cannot_reach(failures)

    def _is_late(self) -> bool:
        call = CURRENT_CALL.get()
        return call is not None and self._clock.monotonic_ms() >= call.deadline_ms

    def _candidates(self) -> list[Address]:
        is_open = [address for address, link in self._links.items() if not link.is_closed]
        known = self._shuffled([each.address for each in self.metadata.brokers.values()])
        return sorted(dict.fromkeys([*is_open, *known, *self._shuffled(self._bootstrap)]), key=self._rank)

    def _rank(self, address: Address) -> tuple[bool, int, bool, bool]:
        """Prefer an open idle connection: a busy one may wait for a hanging broker."""
        link = self._links.get(address)
        is_open = link is not None and not link.is_closed
        is_busy = link is not None and not link.is_idle
        return (*self._ranking.rank(address, self._clock.monotonic_ms()), not is_open, is_busy)

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
            opening.add_done_callback(lambda done: self._forget_task(self._opening, address, done))
        # Shielded: other callers may wait for the same connection.
        return await self.before_deadline(asyncio.shield(opening), f"no connection to {address} in time")

    def _forget_task(self, tasks: dict[Key, asyncio.Task[Result]], key: Key, task: asyncio.Task[Result]) -> None:
        tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # already reported to the waiters, if there are any

    async def _open(self, address: Address) -> Link:
        link = Link(address, self._clock, self.settings)
        try:
            await link.open(self._network)
        except (UnicodeError, OverflowError) as error:  # an invalid host name or port
            raise OSError(f"not an address that can be connected to: {error}") from error
        except OSError:
            self._ranking.mark_unreachable(address, self._clock.monotonic_ms())
            raise
        self._ranking.mark_reachable(address)
        self._links[address] = link
        return link

    async def close(self) -> None:
        """Close every connection permanently; pending requests fail."""
        self._is_closed = True
        tasks = [*self._opening.values(), *self._lookups.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.close() for link in links))
