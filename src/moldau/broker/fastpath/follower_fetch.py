"""Fetches of a follower in an established session, in the shape that nearly all of them have.

With three replicas every batch is fetched twice, so this path needs no coroutine, future or message object: the frame
is parsed by hand (`wire.follower_fetch`), `fetch.follower_fetch` reads and counts as it does for the handler, and
while there is nothing to send the session keeps a small waiter. A new session, forgotten partitions, an unknown
partition or too many of them go to the handler.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.fetch import follower_fetch
from moldau.broker.fetch.follower_fetch import FollowerRead
from moldau.broker.fetch.replica_sessions import ReplicaFetchSession, SessionPartition
from moldau.broker.requests.fast_path import FastPath, FastPathConnection, PendingResponse
from moldau.wire.follower_fetch import FETCH, FollowerFetchRequest, read_request, write_response
from moldau.wire.framing import frame_response

if TYPE_CHECKING:
    from moldau.broker.fastpath.hosts import FollowerFetchFastPathHost
    from moldau.broker.requests.context import RequestContext
    from moldau.broker.runtime.meters import ApiMeter
    from moldau.model.ports import Piece

PARTITIONS_MAX: Final = 16  # more of them are read in time slices, by the handler


class _FetchWaiter:
    """A fetch that found nothing new."""

    __slots__ = ("_fast_path", "epoch", "request", "response", "session", "started_ms")

    def __init__(
        self,
        fast_path: "FollowerFetchFastPath",
        session: ReplicaFetchSession,
        request: FollowerFetchRequest,
        started_ms: float,
        response: PendingResponse,
    ) -> None:
        self._fast_path = fast_path
        self.session = session
        self.epoch = session.epoch
        self.request = request
        self.started_ms = started_ms
        self.response = response

    def on_bytes_available(self) -> None:
        """Respond now, unless a producer is in the middle of a batch: then two turns later, with that batch too."""
        if self._fast_path.is_batch_incoming:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._fast_path.finish_wait, self)
        else:
            self._fast_path.finish_wait(self)

    def complete(self) -> None:
        asyncio.get_running_loop().call_soon(self._fast_path.finish_wait, self)


class FollowerFetchFastPath:
    """The fetches of one follower on one connection."""

    __slots__ = (
        "_authorizer",
        "_broker",
        "_connection",
        "_generation",
        "_is_closed",
        "_meter",
        "_page_cache_reads",
        "_waiter",
    )

    tolerates_delay: Final = False

    def __init__(self, connection: FastPathConnection, broker: "FollowerFetchFastPathHost", meter: "ApiMeter") -> None:
        self._connection = connection
        self._broker = broker
        self._meter = meter
        self._authorizer = broker.authorizer
        self._generation: int | None = None  # of the ACLs that allow this follower to fetch
        self._is_closed = False
        self._waiter: _FetchWaiter | None = None  # the last one
        self._page_cache_reads: set[asyncio.Task[None]] = set()

    @property
    def is_batch_incoming(self) -> bool:
        return self._broker.write_coalescer.more_follows

    def try_handle(self, frame: memoryview) -> bool:
        broker = self._broker
        request = read_request(frame)
        if request is None or self._authorizer.generation != self._generation or not broker.write_coalescer.is_empty:
            return False
        sessions = broker.replica_sessions
        session = sessions.find(request.session_id, request.session_epoch, request.replica)
        if session is None or request.replica not in broker.partitions.image.brokers:
            return False
        named = [session.followed.get(each[:2]) for each in request.partitions]
        if len(named) + len(session.ready) > PARTITIONS_MAX or not all(map(_is_open, named)):
            return False
        started_ms = self._connection.last_active_ms = broker.clock.monotonic_ms()
        sessions.advance_epoch(session)
        session.broker_epoch = request.broker_epoch
        session.fetched_ms = started_ms
        for followed, each in zip(named, request.partitions, strict=True):
            assert followed is not None
            followed.update(each, followed.partition)
            session.ready[followed] = None
        if session.fetch_requested_by:
            session.notify_leadership_checks()
        try:
            self._respond_or_wait(session, request, started_ms)
        except Exception as error:
            self._fail(error)
        return True

    def _respond_or_wait(self, session: ReplicaFetchSession, request: FollowerFetchRequest, started_ms: float) -> None:
        reading = follower_fetch.read_ready(session, request.max_bytes, self._broker)
        if not follower_fetch.should_wait(session, reading, request.max_wait_ms, request.min_bytes):
            self._respond(session, request, started_ms, reading, None)
            return
        follower_fetch.restore_ready(session, reading)
        response = self._connection.responses.reserve(follower_fetch.WAITING_WEIGHT)
        waiter = self._waiter = _FetchWaiter(self, session, request, started_ms, response)
        wait_ms = min(request.max_wait_ms, follower_fetch.WAIT_MS_MAX)
        session.begin_wait(waiter, request.min_bytes - reading.bytes, wait_ms, has_news=bool(reading.results))

    def finish_wait(self, waiter: _FetchWaiter) -> None:
        session, request = waiter.session, waiter.request
        session.end_wait(waiter)
        if self._is_closed:  # the next connection sends what is new
            return
        try:
            if session.epoch == waiter.epoch:
                reading = follower_fetch.read_ready(session, request.max_bytes, self._broker)
            else:  # the follower has sent its next fetch, whose response carries everything
                reading = FollowerRead(0)
            self._respond(session, request, waiter.started_ms, reading, waiter.response)
        except Exception as error:
            self._fail(error)

    def _respond(
        self,
        session: ReplicaFetchSession,
        request: FollowerFetchRequest,
        started_ms: float,
        reading: FollowerRead,
        response: PendingResponse | None,
    ) -> None:
        if follower_fetch.is_warm(reading):
            self._send(session, request, started_ms, reading, response)
            return
        if response is None:
            response = self._connection.responses.reserve(follower_fetch.WAITING_WEIGHT)
        task = asyncio.get_running_loop().create_task(
            self._read_into_page_cache(session, request, started_ms, reading, response)
        )
        self._page_cache_reads.add(task)
        task.add_done_callback(self._page_cache_reads.discard)

    async def _read_into_page_cache(
        self,
        session: ReplicaFetchSession,
        request: FollowerFetchRequest,
        started_ms: float,
        reading: FollowerRead,
        response: PendingResponse,
    ) -> None:
        try:
            await follower_fetch.warm(reading, self._broker.executor)
            self._send(session, request, started_ms, reading, response)
        except Exception as error:
            self._fail(error)

    def _send(
        self,
        session: ReplicaFetchSession,
        request: FollowerFetchRequest,
        started_ms: float,
        reading: FollowerRead,
        response: PendingResponse | None,
    ) -> None:
        topics = follower_fetch.group_by_topic(reading)
        pieces = write_response(request.correlation_id, session.session_id, topics)
        if pieces is None:
            pieces = self._frame(session, request, topics)
        self._meter.finished(self._broker.clock.monotonic_ms() - started_ms)
        (response or self._connection.responses).send(pieces)

    def _frame(
        self, session: ReplicaFetchSession, request: FollowerFetchRequest, topics: dict[bytes, list[Any]]
    ) -> "list[Piece]":
        response = follower_fetch.response(session.session_id, topics)
        return frame_response(FETCH, request.version, request.correlation_id, response)

    def _fail(self, error: Exception) -> None:
        """The follower starts a new session on its next connection."""
        self._connection.fail("follower fetch", error)

    def learn(
        self,
        frame: memoryview,  # noqa: ARG002 - the common signature
        request: Any,  # noqa: ARG002
        context: "RequestContext[FollowerFetchFastPathHost]",
        response: Any,  # noqa: ARG002
    ) -> None:
        """Authorize the next fetches; the session holds the rest of what they repeat."""
        is_allowed = context.is_allowed(Operation.CLUSTER_ACTION, CLUSTER, is_audited=False)
        self._generation = self._authorizer.generation if is_allowed else None

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self._is_closed = True
        if self._waiter is not None:
            self._waiter.session.end_wait(self._waiter)
        for task in list(self._page_cache_reads):
            task.cancel()


def create(
    connection: FastPathConnection,
    request: Any,
    context: "RequestContext[FollowerFetchFastPathHost]",
    meter: "ApiMeter",
) -> FastPath | None:
    if follower_fetch.replica_of(request) < 0 or context.is_from_controllers:  # a consumer, or the metadata log
        return None
    return FollowerFetchFastPath(connection, context.broker, meter)


def _is_open(followed: SessionPartition | None) -> bool:
    """Whether the session has this partition, and it is still here."""
    return followed is not None and followed.partition is not None and followed.partition.role.is_open
