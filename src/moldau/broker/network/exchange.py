"""Fetches of a follower that come again and again on one connection, in the shape that nearly all of them have.

With three replicas every batch is fetched twice, so this is done without a coroutine, a future or a message object
where it can be: the frame is read by hand (`wire.follower_fetch`), what it says and what it is answered is what
`replicas.serving` makes of it, and while there is nothing to answer, the session keeps a small object. Whatever is not
as simple as that goes the long way, through decoder, handler and encoder.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.fetch import follower_fetch
from moldau.broker.fetch.follower_fetch import FollowerRead
from moldau.broker.fetch.replica_sessions import ReplicaFetchSession, SessionPartition
from moldau.broker.network.replies import Replies, Reply
from moldau.broker.runtime.meters import ApiMeter
from moldau.model.ports import Piece
from moldau.wire.follower_fetch import FETCH, FollowerFetchRequest, read_question, write_answer
from moldau.wire.framing import frame_response

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

PARTITIONS_MAX: Final = 16  # more of them take turns with others, which is the handler's business


class _Wait:
    """A fetch that found nothing new."""

    __slots__ = ("_exchange", "epoch", "question", "reply", "session", "started_ms")

    def __init__(
        self, exchange: "Exchange", session: ReplicaFetchSession, question: FollowerFetchRequest, started_ms: float
    ) -> None:
        self._exchange = exchange
        self.session = session
        self.epoch = session.epoch
        self.question = question
        self.started_ms = started_ms
        self.reply = Reply(follower_fetch.WAITING_WEIGHT)

    def came(self) -> None:
        """At once, unless the rest of a batch is about to be read: then both go together, a turn after the next."""
        if self._exchange.more_follows:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._exchange.go_on, self)
        else:
            self._exchange.go_on(self)

    def end(self) -> None:
        asyncio.get_running_loop().call_soon(self._exchange.go_on, self)


class Exchange:
    """One connection of a follower. `failed` is told of what must not happen, and closes the connection."""

    __slots__ = ("_broker", "_failed", "_is_closed", "_meter", "_replies", "_wait", "_warming")

    def __init__(
        self, broker: "Broker", replies: Replies, meter: ApiMeter, failed: Callable[[Exception], None]
    ) -> None:
        self._broker = broker
        self._replies = replies
        self._meter = meter
        self._failed = failed
        self._is_closed = False
        self._wait: _Wait | None = None  # the last one
        self._warming: set[asyncio.Task[None]] = set()

    @property
    def more_follows(self) -> bool:
        return self._broker.gathering.more_follows

    def takes(self, frame: memoryview, started_ms: float) -> bool:
        """Whether the frame is such a fetch: then it is answered, now or later. If not, nothing has happened."""
        broker = self._broker
        question = read_question(frame)
        if question is None or not broker.allows_all or not broker.gathering.is_empty:
            return False
        sessions = broker.replicas.sessions
        session = sessions.find(question.session_id, question.session_epoch, question.replica)
        if session is None or question.replica not in broker.partitions.image.brokers:
            return False
        asked = question.asked
        named = [session.followed.get(each[:2]) for each in asked]
        if len(named) + len(session.ready) > PARTITIONS_MAX or not all(map(_is_as_before, named)):
            return False
        sessions.go_on(session)
        session.broker_epoch = question.broker_epoch
        session.fetched_ms = started_ms
        for followed, each in zip(named, asked, strict=True):
            assert followed is not None
            followed.ask(each, followed.partition)
            session.ready[followed] = None
        if session.fetch_requested_by:
            session.notify_leadership_checks()
        try:
            self._answer_or_wait(session, question, started_ms)
        except Exception as error:
            self._failed(error)
        return True

    def _answer_or_wait(self, session: ReplicaFetchSession, question: FollowerFetchRequest, started_ms: float) -> None:
        reading = follower_fetch.read_ready(session, question.max_bytes, self._broker)
        may_wait = question.max_wait_ms > 0 and not reading.is_urgent and not session.fetch_requested_by
        if not may_wait or reading.bytes >= question.min_bytes:
            self._answer(session, question, started_ms, reading, None)
            return
        follower_fetch.look_again(session, reading)
        wait = self._wait = _Wait(self, session, question, started_ms)
        self._replies.line_up(wait.reply)
        wait_ms = min(question.max_wait_ms, follower_fetch.WAIT_MS_MAX)
        session.begin_wait(wait, question.min_bytes - reading.bytes, wait_ms, has_news=bool(reading.answers))

    def go_on(self, wait: _Wait) -> None:
        """Its wait is over."""
        session, question = wait.session, wait.question
        session.end_wait(wait)
        if self._is_closed:  # what is new is for the next connection
            return
        try:
            if session.epoch == wait.epoch:
                reading = follower_fetch.read_ready(session, question.max_bytes, self._broker)
            else:  # the follower has asked again: the answer to that says it all
                reading = FollowerRead(0)
            self._answer(session, question, wait.started_ms, reading, wait.reply)
        except Exception as error:
            self._failed(error)

    def _answer(
        self,
        session: ReplicaFetchSession,
        question: FollowerFetchRequest,
        started_ms: float,
        reading: FollowerRead,
        reply: Reply | None,
    ) -> None:
        if follower_fetch.is_warm(reading):
            self._send(session, question, started_ms, reading, reply)
            return
        if reply is None:
            reply = Reply(follower_fetch.WAITING_WEIGHT)
            self._replies.line_up(reply)
        task = asyncio.get_running_loop().create_task(self._warm(session, question, started_ms, reading, reply))
        self._warming.add(task)
        task.add_done_callback(self._warming.discard)

    async def _warm(
        self,
        session: ReplicaFetchSession,
        question: FollowerFetchRequest,
        started_ms: float,
        reading: FollowerRead,
        reply: Reply,
    ) -> None:
        try:
            await follower_fetch.warm(reading, self._broker.executor)
            self._send(session, question, started_ms, reading, reply)
        except Exception as error:
            self._failed(error)

    def _send(
        self,
        session: ReplicaFetchSession,
        question: FollowerFetchRequest,
        started_ms: float,
        reading: FollowerRead,
        reply: Reply | None,
    ) -> None:
        topics = follower_fetch.told(reading)
        pieces = write_answer(question.correlation_id, session.session_id, topics)
        if pieces is None:
            pieces = self._frame(session, question, topics)
        self._meter.finished(self._broker.clock.monotonic_ms() - started_ms)
        self._replies.send(pieces, reply)

    def _frame(
        self, session: ReplicaFetchSession, question: FollowerFetchRequest, topics: dict[bytes, list[Any]]
    ) -> list[Piece]:
        answer = follower_fetch.response(session.session_id, topics)
        return frame_response(FETCH, question.version, question.correlation_id, answer)

    def close(self) -> None:
        """The connection is gone."""
        self._is_closed = True
        if self._wait is not None:
            self._wait.session.end_wait(self._wait)
        for task in list(self._warming):
            task.cancel()


def _is_as_before(followed: SessionPartition | None) -> bool:
    """Whether the session knows this partition, and it is still the same."""
    return followed is not None and followed.partition is not None and followed.partition.is_open
