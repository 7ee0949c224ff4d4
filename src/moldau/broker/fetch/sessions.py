"""Fetch sessions of consumers (KIP-227): a client names its partitions once, later fetches carry only the changes.

    epoch 0          a new session, with all named partitions; without a free slot the fetch is served without one
    epoch 1, 2, ...  incremental: named partitions are added or updated, forgotten ones removed, all others kept
    epoch -1         ends the session; the fetch itself is served without one

An incremental response has the partitions with records, an error, or a high watermark or log start offset that was not
sent before (`FetchContext.must_include`). A fetch looks only at partitions that may have such news, so that its cost
does not grow with the session:

    partition ──on_bytes_available, wake──> CachedPartition ──> Session.ready ──take()──> read ──> response
                                                                      ^                               │
                                                                      └── records sent, errors, ... ──┘

`ready` holds the partitions to read next. A partition leaves it when it is read and found idle: nothing above the fetch
offset, and everything sent. It returns with its next news, when the client names it, and when the client's
authorization may have changed. It watches its partition from before it is read, so no news is lost in between. Once it
is ready it stops watching, unless a fetch of the session waits for bytes: appends to a partition whose client
does not fetch stay cheap.

Partitions whose records were sent are ready again, behind the others, so that each gets its turn when responses are
full. The number of sessions and of all their partitions is bounded. When all slots are taken, the least recently used
session is evicted if it has been idle for two minutes, else an old one with fewer partitions.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from moldau.broker.partitions.waiters import DelayedFetch, Watched
from moldau.model.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from moldau.model.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TOPIC_ID
from moldau.model.ports import Random
from moldau.model.protocol import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH, NO_FETCH_SESSION, SESSION_EPOCH_MAX
from moldau.wire.messages import FetchRequest, FetchResponse

EVICTION_MS: Final = 120_000.0
PARTITIONS_MAX: Final = 200_000  # in all sessions together; beyond it fetches get no session

Key = tuple[str | bytes, int]  # a topic by name, or from version 13 on by id, and a partition


@dataclass(slots=True, eq=False)
class CachedPartition:
    """One partition that a client fetches, and the state last sent to it."""

    topic: str
    topic_id: bytes
    index: int
    offset: int
    max_bytes: int
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    sent_high_watermark: int = NO_OFFSET
    sent_start_offset: int = NO_OFFSET
    session: "Session | None" = None
    _watched: Watched | None = None

    def update(self, newer: "CachedPartition") -> None:
        self.offset = newer.offset
        self.max_bytes = newer.max_bytes
        self.leader_epoch = newer.leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch

    def watch(self, partition: Watched) -> None:
        """Be notified of the partition's next news. Called before it is read."""
        if self.session is None:
            return
        if partition is not self._watched:
            self._stop_watching()
            self._watched = partition
        partition.watchers[self] = None

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._watched.watchers.pop(self, None)

    def leave(self) -> None:
        """The session ends, or no longer has the partition."""
        self._stop_watching()
        self.session = self._watched = None

    # Notifications of the partition

    def on_bytes_available(self, count: int) -> None:
        session = self.session
        if session is None:
            return
        session.ready[self] = None
        if session.waiting is None:
            self._stop_watching()
        else:
            session.waiting.on_bytes_available(count)

    def wake(self) -> None:
        session = self.session
        if session is not None:
            session.ready[self] = None
            session.wake()


@dataclass(slots=True, eq=False)
class Session:
    """The fetch session of one client."""

    session_id: int
    uses_topic_ids: bool
    created_ms: float
    used_ms: float
    epoch: int = 1
    wanted: dict[Key, CachedPartition] = field(default_factory=dict)
    ready: dict[CachedPartition, None] = field(default_factory=dict)  # those to read next, in this order
    waiting: DelayedFetch | None = None
    _authorization: object = None  # client and state of the ACLs for which idle partitions are known to be allowed

    def name(self, key: Key, named: CachedPartition) -> None:
        """The client names a partition: add or update it."""
        wanted = self.wanted.get(key)
        if wanted is None:
            wanted = self.wanted[key] = named
            wanted.session = self
        else:
            wanted.update(named)
        self.ready[wanted] = None

    def forget(self, key: Key) -> None:
        wanted = self.wanted.pop(key, None)
        if wanted is not None:
            self.ready.pop(wanted, None)
            wanted.leave()

    def authorized_by(self, authorization: object) -> None:
        """With another client or other ACLs, look at every partition again; None stands for an unknown state."""
        if authorization is None or authorization != self._authorization:
            self._authorization = authorization
            self.read_all()

    def read_all(self) -> None:
        self.ready.update(dict.fromkeys(self.wanted.values()))

    def wake(self) -> None:
        """Complete the delayed fetch of the session."""
        if self.waiting is not None:
            self.waiting.wake()

    def end(self) -> None:
        self.ready.clear()
        for wanted in self.wanted.values():
            wanted.leave()
        self.wake()


@dataclass(slots=True)
class FetchContext:
    """One fetch request and its session, if any: the partitions to read, and how to respond."""

    wanted: dict[Key, CachedPartition]  # those that the request names
    session: Session | None
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session else NO_FETCH_SESSION

    @property
    def is_empty(self) -> bool:
        return not (self.wanted if self.session is None else self.session.wanted)

    def take(self) -> list[CachedPartition]:
        """The partitions to read now. Without a session, these are all."""
        if self.session is None:
            return list(self.wanted.values())
        taken, self.session.ready = list(self.session.ready), {}
        return taken

    def restore(self, partitions: Iterable[CachedPartition]) -> None:
        """The partitions were read, but nothing was sent: read them again."""
        session = self.session
        if session is not None:
            for wanted in partitions:
                if wanted.session is session:
                    session.ready[wanted] = None

    @contextmanager
    def register_wait(self, wait: DelayedFetch) -> Iterator[None]:
        """Register the wait with the session: news of its partitions and its own end end the wait."""
        session = self.session
        if session is None:
            yield
            return
        session.waiting = wait
        if session.ready:  # news since the partitions were read
            wait.wake()
        try:
            yield
        finally:
            if session.waiting is wait:
                session.waiting = None

    def must_include(self, wanted: CachedPartition, result: FetchResponse.PartitionData) -> bool:
        """Whether an incremental response must include the partition; remembers the state sent."""
        is_news = (
            len(result.records or b"") > 0
            or result.error_code != 0
            or result.preferred_read_replica != NO_NODE
            or result.high_watermark != wanted.sent_high_watermark
            or result.log_start_offset != wanted.sent_start_offset
        )
        wanted.sent_high_watermark = result.high_watermark
        wanted.sent_start_offset = result.log_start_offset
        if result.error_code != 0:
            wanted.sent_high_watermark = NO_OFFSET  # so that the recovery is sent as well
        return is_news or not self.is_incremental


class FetchSessions:
    """All consumer sessions of a broker, at most `slots`, with a limit on their partitions too."""

    def __init__(self, random: Random, slots: int) -> None:
        self._random = random
        self._slots = slots
        self._sessions: dict[int, Session] = {}  # the least recently used first
        self.partition_count = 0  # of all sessions
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: float) -> FetchContext:
        """The partitions to fetch; raises if the session is unknown or has another epoch."""
        named = _named(request.topics, uses_topic_ids)
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            if request.session_id != NO_FETCH_SESSION:
                self._end(request.session_id)
            if request.session_epoch == FINAL_SESSION_EPOCH or not named:
                return FetchContext(named, None, is_incremental=False)
            session = self._create(named, uses_topic_ids, now_ms)
            return FetchContext(named, session, is_incremental=False)
        session = self._continue(request, uses_topic_ids, now_ms)
        if not named.keys() <= session.wanted.keys() and self.partition_count + len(named) > PARTITIONS_MAX:
            self._end(session.session_id)
            raise FetchSessionIdNotFound("Too many partitions in this broker's fetch sessions.")
        self._change(session, named, _keys(request.forgotten_topics_data, uses_topic_ids))
        return FetchContext(named, session, is_incremental=True)

    def _change(self, session: Session, named: dict[Key, CachedPartition], forgotten: Iterable[Key]) -> None:
        before = len(session.wanted)
        for key, wanted in named.items():
            session.name(key, wanted)
        for key in forgotten:
            session.forget(key)
        self.partition_count += len(session.wanted) - before

    def _end(self, session_id: int) -> None:
        """End the session, and a delayed fetch of it: a closing client waits for that."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.wanted)
            session.end()

    def _continue(self, request: FetchRequest, uses_topic_ids: bool, now_ms: float) -> Session:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"Unknown fetch session {request.session_id}.")
        if session.uses_topic_ids is not uses_topic_ids:
            raise FetchSessionTopicIdError("A fetch session may not change between topic names and topic ids.")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(f"Fetch session {session.session_id} expects epoch {session.epoch}.")
        session.epoch = 1 if session.epoch == SESSION_EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        session.wake()  # at most one fetch of a session waits
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return session

    def _create(self, wanted: dict[Key, CachedPartition], uses_topic_ids: bool, now_ms: float) -> Session | None:
        if self.partition_count + len(wanted) > PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._slots and not self._evict(len(wanted), now_ms):
            return None
        session_id = self._random.randrange(1, SESSION_EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, SESSION_EPOCH_MAX)
        session = self._sessions[session_id] = Session(session_id, uses_topic_ids, now_ms, now_ms)
        self._change(session, wanted, ())
        return session

    def _evict(self, size: int, now_ms: float) -> bool:
        """Make room: evict the least recently used session if it is idle, else a smaller old one."""
        if not self._sessions:
            return False
        evicted = next(iter(self._sessions.values()))
        if now_ms - evicted.used_ms <= EVICTION_MS:
            aged = [each for each in self._sessions.values() if now_ms - each.created_ms > EVICTION_MS]
            smallest = min(aged, key=lambda each: len(each.wanted), default=None)
            if smallest is None or len(smallest.wanted) >= size:
                return False
            evicted = smallest
        self._end(evicted.session_id)
        self.evictions += 1
        return True


def _named(topics: Iterable[FetchRequest.FetchTopic], uses_topic_ids: bool) -> dict[Key, CachedPartition]:
    named: dict[Key, CachedPartition] = {}
    for topic in topics:
        name = "" if uses_topic_ids else topic.topic
        topic_id = topic.topic_id if uses_topic_ids else NO_TOPIC_ID
        for partition in topic.partitions:
            named[topic_id if uses_topic_ids else name, partition.partition] = CachedPartition(
                name,
                topic_id,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
            )
    return named


def _keys(forgotten: Iterable[FetchRequest.ForgottenTopic], uses_topic_ids: bool) -> list[Key]:
    return [(each.topic_id if uses_topic_ids else each.topic, index) for each in forgotten for index in each.partitions]
