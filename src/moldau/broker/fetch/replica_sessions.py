"""Fetch sessions of followers: each names its partitions once, and a leader looks only at those with news.

A consumer's session is gone through with every fetch. A follower may share a thousand partitions with its leader and
fetch after every batch, so here it is the partitions that tell the session: they have grown, more of them is committed,
or somebody else leads them.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau.model.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.model.ports import Random
from moldau.model.protocol import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH, NO_FETCH_SESSION, SESSION_EPOCH_MAX

SESSIONS_PER_REPLICA_MAX: Final = 8  # more than a follower opens at a time; the one used longest ago goes
REPLICAS_MAX: Final = 1000
COMMITTED_MS: Final = 10.0  # so long is a follower left without word of a new high watermark, if nothing else is new

Key = tuple[bytes, int]  # topic id and partition
FindPartition = Callable[[bytes, int], Partition | None]


class FetchWaiter(Protocol):
    """A fetch that waits. Each call ends its wait; whoever waits no longer does nothing."""

    def came(self) -> None:
        """There is enough to read. It may be read, and sent, within this call."""
        ...

    def end(self) -> None:
        """Something else is new, or the time is up. Roles may be changing: it goes on in a later turn."""
        ...


class _FutureWaiter:
    """A handler that waits for a future."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    came = end


class SessionPartition:
    """One partition in a follower's session: what it asked for last, and what it was told."""

    __slots__ = (
        "is_counted",
        "is_held_back",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "offset",
        "partition",
        "sent_offset",
        "session",
        "told_high_watermark",
        "told_start_offset",
        "was_at_end",
    )

    def __init__(self, session: "ReplicaFetchSession", key: Key) -> None:
        self.session = session
        self.key = key
        self.partition: Partition | None = None
        self.offset = NO_OFFSET
        self.sent_offset = NO_OFFSET  # of the last records that it was sent
        self.max_bytes = 0
        self.leader_epoch = NO_EPOCH
        self.last_fetched_epoch = NO_EPOCH
        self.log_start_offset = NO_OFFSET
        self.told_high_watermark = NO_OFFSET
        self.told_start_offset = NO_OFFSET
        self.is_counted = False  # what it asked for says how far its log is, in the present leader epoch
        self.was_at_end = False  # when it was named: what it is sent has been written since
        self.is_held_back = False  # by a throttle, until a timer rings

    def ask(self, asked: Any, partition: Partition | None) -> None:
        """It is named in a fetch."""
        self.offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset
        self.told_high_watermark = NO_OFFSET
        self.is_counted = self.was_at_end = False
        if partition is not self.partition:
            self.leave()
            self.partition = partition
            if partition is not None:
                partition.followers[self] = None

    def leave(self) -> None:
        if self.partition is not None:
            self.partition.followers.pop(self, None)

    # What its partition tells

    def grew(self, count: int) -> None:
        """So many more bytes can be fetched."""
        self.session.ready[self] = None
        self.session.came(count)

    def committed(self) -> None:
        """The high watermark has moved."""
        self.session.ready[self] = None
        self.session.tell_soon()

    def changed(self) -> None:
        """Another leader, or another epoch of this one: what it said before says nothing about this one."""
        self.is_counted = False
        self.session.ready[self] = None
        self.session.wake()

    def request_fetch(self) -> None:
        self.session.request_fetch(self)


class ReplicaFetchSession:
    """What one follower fetches here."""

    def __init__(self, session_id: int, replica: int) -> None:
        self.session_id = session_id
        self.replica = replica
        self.broker_epoch = NO_EPOCH
        self.epoch = 1
        self.fetched_ms = 0.0  # when it last asked, whatever it named
        self.followed: dict[Key, SessionPartition] = {}
        self.ready: dict[SessionPartition, None] = {}  # those with news, the longest waiting first
        self.fetch_requested_by: dict[
            SessionPartition, None
        ] = {}  # those whose leader waits for the next fetch, see questions.py
        self._waiting: FetchWaiter | None = None
        self._needed_bytes = 0
        self._patience = LazyTimer(self.wake)
        self._soon = LazyTimer(self.wake)

    def ask(self, topics: Iterable[Any], find: FindPartition) -> None:
        for topic in topics:
            for asked in topic.partitions:
                key = topic.topic_id, asked.partition
                followed = self.followed.get(key)
                if followed is None:
                    followed = self.followed[key] = SessionPartition(self, key)
                followed.ask(asked, find(*key))
                self.ready[followed] = None

    def forget(self, topics: Iterable[Any]) -> None:
        for topic in topics:
            for index in topic.partitions:
                followed = self.followed.pop((topic.topic_id, index), None)
                if followed is not None:
                    followed.leave()
                    self.ready.pop(followed, None)
                    self.fetch_requested_by.pop(followed, None)

    def end(self) -> None:
        for followed in self.followed.values():
            followed.leave()
        self.followed.clear()
        self.ready.clear()
        self.fetch_requested_by.clear()
        self.wake()
        self._patience.close()
        self._soon.close()

    # Whether this node still leads

    def request_fetch(self, followed: SessionPartition) -> None:
        """Its leader wants to hear from the follower: no fetch is kept waiting until it has."""
        self.fetch_requested_by[followed] = None
        self.wake()

    def notify_leadership_checks(self) -> None:
        """The follower has asked again."""
        for followed in list(self.fetch_requested_by):
            leading = None if followed.partition is None else followed.partition.leading
            if leading is None or not leading.leadership_check.fetched(followed):
                del self.fetch_requested_by[followed]

    # Waiting for news

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    async def wait(self, needed_bytes: int, wait_ms: float, *, has_news: bool) -> None:
        """Until so many bytes have come, or something else is new, or the time is up, or the follower asks again."""
        waiting = _FutureWaiter()
        self.begin_wait(waiting, needed_bytes, wait_ms, has_news=has_news)
        try:
            await waiting.done
        finally:
            self.end_wait(waiting)

    def begin_wait(self, waiting: FetchWaiter, needed_bytes: int, wait_ms: float, *, has_news: bool) -> None:
        self._needed_bytes = needed_bytes
        self._waiting = waiting
        self._patience.set(wait_ms)
        if has_news:
            self.tell_soon()

    def end_wait(self, waiting: FetchWaiter) -> None:
        if self._waiting is waiting:
            self._waiting = None
        if self._waiting is None:
            self._patience.stop()
            self._soon.stop()

    def came(self, count: int) -> None:
        """So many more bytes. What comes while the follower is busy with them goes with its next fetch, all at once."""
        self._needed_bytes -= count
        if self._needed_bytes <= 0:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                waiting.came()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.end()

    def later(self, followed: SessionPartition, delay_ms: float) -> None:
        """It may not be sent more just now. One timer is enough, however often it is looked at meanwhile."""
        if not followed.is_held_back:
            followed.is_held_back = True
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._go_on, followed)

    def _go_on(self, followed: SessionPartition) -> None:
        followed.is_held_back = False
        if self.followed.get(followed.key) is followed:
            followed.grew(self._needed_bytes)

    def tell_soon(self) -> None:
        """Not at once: with the next batch, which is likely to come, it costs nothing."""
        if self._waiting is not None and not self._soon.is_set:
            self._soon.set(COMMITTED_MS)


class ReplicaFetchSessions:
    """All sessions of followers, by id. Bounded by the number of brokers, for only those have them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sessions: dict[int, ReplicaFetchSession] = {}  # the least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: Any, replica: int) -> ReplicaFetchSession:
        """The session of a request, a new one if it asks for that; raises if it is unknown or out of step."""
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            self._end(request.session_id, replica)
            session = ReplicaFetchSession(NO_FETCH_SESSION, replica)
            if request.session_epoch == INITIAL_SESSION_EPOCH:
                self._add(session)
            return session
        known = self._sessions.get(request.session_id)
        if known is None or known.replica != replica:
            raise FetchSessionIdNotFound(f"There is no fetch session {request.session_id}.")
        if known.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(f"Fetch session {known.session_id} expects epoch {known.epoch}.")
        self.go_on(known)
        return known

    def find(self, session_id: int, session_epoch: int, replica: int) -> ReplicaFetchSession | None:
        """The session that expects such a fetch next."""
        known = self._sessions.get(session_id)
        return known if known is not None and known.replica == replica and known.epoch == session_epoch else None

    def go_on(self, known: ReplicaFetchSession) -> None:
        """Another fetch of it has come."""
        self._sessions[known.session_id] = self._sessions.pop(known.session_id)
        known.epoch = 1 if known.epoch == SESSION_EPOCH_MAX else known.epoch + 1
        known.wake()  # an earlier fetch of the session that still waits: whoever asks again has news

    def _add(self, session: ReplicaFetchSession) -> None:
        own = [each for each in self._sessions.values() if each.replica == session.replica]
        if len(own) >= SESSIONS_PER_REPLICA_MAX:
            self._end(own[0].session_id, session.replica)
        if len(self._sessions) >= REPLICAS_MAX * SESSIONS_PER_REPLICA_MAX:
            oldest = next(iter(self._sessions.values()))
            self._end(oldest.session_id, oldest.replica)
        while session.session_id in self._sessions or session.session_id == NO_FETCH_SESSION:
            session.session_id = self._random.randrange(1, SESSION_EPOCH_MAX)
        self._sessions[session.session_id] = session

    def _end(self, session_id: int, replica: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.replica == replica:
            del self._sessions[session_id]
            session.end()

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self._end(session.session_id, session.replica)
