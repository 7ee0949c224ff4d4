"""Fetch sessions of consumers (KIP-227): a client names its partitions once, later fetches carry only the changes.

    epoch 0          a new session, with all named partitions; without a free slot the fetch is served without one
    epoch 1, 2, ...  incremental: named partitions are added or updated, forgotten ones removed, all others kept
    epoch -1         ends the session; the fetch itself is served without one

An incremental response has the partitions with records, an error, or a high watermark or log start offset that was not
sent before (`FetchContext.must_include`). Partitions whose records were sent move to the end, so that each gets its
turn when responses are full. The number of sessions and of all their partitions is bounded. When all slots are taken,
the least recently used session is evicted if it has been idle for two minutes, else an old one with fewer partitions.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.broker.partitions.waiters import DelayedFetch
from moldau.model.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from moldau.model.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TOPIC_ID
from moldau.model.ports import Random
from moldau.model.protocol import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH, NO_FETCH_SESSION, SESSION_EPOCH_MAX

EVICTION_MS: Final = 120_000.0
PARTITIONS_MAX: Final = 200_000  # in all sessions together; beyond it fetches get no session

Key = tuple[str | bytes, int]  # a topic by name, or from version 13 on by id, and a partition


@dataclass(slots=True)
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

    def update(self, newer: "CachedPartition") -> None:
        self.offset = newer.offset
        self.max_bytes = newer.max_bytes
        self.leader_epoch = newer.leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch


@dataclass(slots=True)
class Session:
    """The fetch session of one client. Partitions whose records were sent move to the end of the order."""

    session_id: int
    uses_topic_ids: bool
    created_ms: float
    used_ms: float
    epoch: int = 1
    wanted: dict[Key, CachedPartition] = field(default_factory=dict)
    waiting: DelayedFetch | None = None

    def move_to_end(self, key: Key) -> None:
        wanted = self.wanted.pop(key, None)  # another request of the session may have removed it
        if wanted is not None:
            self.wanted[key] = wanted


@dataclass(slots=True)
class FetchContext:
    """One fetch request and its session, if any: the partitions to read, and how to respond."""

    wanted: dict[Key, CachedPartition]
    session: Session | None
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session else NO_FETCH_SESSION

    @contextmanager
    def register_wait(self, wait: DelayedFetch) -> Iterator[None]:
        """Register the wait with the session, so that the end of the session ends it."""
        if self.session is None:
            yield
            return
        self.session.waiting = wait
        try:
            yield
        finally:
            self.session.waiting = None

    def must_include(self, key: Key, wanted: CachedPartition, result: Any) -> bool:
        """Whether an incremental response must include the partition; remembers the state sent."""
        has_records = len(result.records or b"") > 0
        is_news = (
            has_records
            or result.error_code != 0
            or result.preferred_read_replica != NO_NODE
            or result.high_watermark != wanted.sent_high_watermark
            or result.log_start_offset != wanted.sent_start_offset
        )
        wanted.sent_high_watermark = result.high_watermark
        wanted.sent_start_offset = result.log_start_offset
        if result.error_code != 0:
            wanted.sent_high_watermark = NO_OFFSET  # so that the recovery is sent as well
        if has_records and self.session:
            self.session.move_to_end(key)
        return is_news or not self.is_incremental


class FetchSessions:
    """All consumer sessions of a broker, at most `slots`, with a limit on their partitions too."""

    def __init__(self, random: Random, slots: int) -> None:
        self._random = random
        self._slots = slots
        self._sessions: dict[int, Session] = {}  # the least recently used first
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(session.wanted) for session in self._sessions.values())

    def begin(self, request: Any, *, uses_topic_ids: bool, now_ms: float) -> FetchContext:
        """The partitions to fetch; raises if the session is unknown or has another epoch."""
        named = _named(request.topics, uses_topic_ids)
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            if request.session_id != NO_FETCH_SESSION:
                self._end(request.session_id)
            if request.session_epoch == FINAL_SESSION_EPOCH or not named:
                return FetchContext(named, None, is_incremental=False)
            session = self._create(named, uses_topic_ids, now_ms)
            return FetchContext(dict(named), session, is_incremental=False)
        session = self._continue(request, uses_topic_ids, now_ms)
        if not named.keys() <= session.wanted.keys() and self.partition_count + len(named) > PARTITIONS_MAX:
            self._end(session.session_id)
            raise FetchSessionIdNotFound("Too many partitions in this broker's fetch sessions.")
        for key, wanted in named.items():
            if key in session.wanted:
                session.wanted[key].update(wanted)
            else:
                session.wanted[key] = wanted
        for key in _keys(request.forgotten_topics_data, uses_topic_ids):
            session.wanted.pop(key, None)
        return FetchContext(dict(session.wanted), session, is_incremental=True)

    def _end(self, session_id: int) -> None:
        """Complete a delayed fetch of the session: a closing client waits for it."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.waiting is not None:
            session.waiting.wake()

    def _continue(self, request: Any, uses_topic_ids: bool, now_ms: float) -> Session:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"Unknown fetch session {request.session_id}.")
        if session.uses_topic_ids is not uses_topic_ids:
            raise FetchSessionTopicIdError("A fetch session may not change between topic names and topic ids.")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(f"Fetch session {session.session_id} expects epoch {session.epoch}.")
        session.epoch = 1 if session.epoch == SESSION_EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
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
        session = Session(session_id, uses_topic_ids, now_ms, now_ms, wanted=wanted)
        self._sessions[session_id] = session
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
        del self._sessions[evicted.session_id]
        self.evictions += 1
        return True


def _named(topics: Iterable[Any], uses_topic_ids: bool) -> dict[Key, CachedPartition]:
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


def _keys(forgotten: Iterable[Any], uses_topic_ids: bool) -> list[Key]:
    return [(each.topic_id if uses_topic_ids else each.topic, index) for each in forgotten for index in each.partitions]
