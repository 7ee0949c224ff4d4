"""Fetch sessions of followers: a leader looks only at partitions with news.

A follower may share a thousand partitions with its leader and fetch after every batch, so the partitions notify the
session: their log has grown, the high watermark has advanced, or the leadership has changed. The sessions of consumers
are notified in the same way (`sessions.py`, decision 35), but what makes a partition ready differs: a follower reads
up to the log end, a consumer up to the high watermark or the last stable offset.

    partition.append -> SessionPartition.on_appended -> session.ready + waiter -> response

`ready` holds the partitions to read next. A fetch reads those that are ready and not the others; a partition leaves
`ready` when it is read, and returns with its next news, when the follower names it again, or when too little was found
to send (`follower_fetch.restore_ready`). So no news is lost, however the reads and notifications interleave.

At most one fetch of a session waits. It ends when enough bytes are appended, at its deadline, with the next fetch of
the session, and with any change of the leader. A new high watermark alone waits up to `COMMITTED_MS` for a batch to go
with. The session epoch orders the fetches: a request with another epoch is rejected, and the follower opens a new
session.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau.model.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.model.ports import Random
from moldau.model.protocol import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH, NO_FETCH_SESSION, SESSION_EPOCH_MAX
from moldau.wire import follower_fetch
from moldau.wire.messages import FetchRequest

SESSIONS_PER_REPLICA_MAX: Final = 8  # more than a follower opens; the least recently used one is evicted
REPLICAS_MAX: Final = 1000
COMMITTED_MS: Final = 10.0  # a new high watermark alone is sent to followers after at most this time

Key = tuple[bytes, int]  # topic id and partition
FindPartition = Callable[[bytes, int], Partition | None]


class FetchWaiter(Protocol):
    """A delayed fetch. Each call ends its wait; a completed waiter ignores it."""

    def on_bytes_available(self) -> None:
        """There is enough to read. It may be read and sent within this call."""
        ...

    def complete(self) -> None:
        """There is other news, or the deadline. Roles may be changing, so continue in a later turn."""
        ...


class _FutureWaiter:
    """A handler that awaits a future."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    on_bytes_available = complete


class SessionPartition:
    """One partition in a follower's session: its last fetch position, and what was sent to it."""

    __slots__ = (
        "is_counted",
        "is_throttled",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "offset",
        "partition",
        "sent_high_watermark",
        "sent_offset",
        "sent_start_offset",
        "session",
        "was_at_end",
    )

    def __init__(self, session: "ReplicaFetchSession", key: Key) -> None:
        self.session = session
        self.key = key
        self.partition: Partition | None = None
        self.offset = NO_OFFSET
        self.sent_offset = NO_OFFSET  # of the last records that were sent
        self.max_bytes = 0
        self.leader_epoch = NO_EPOCH
        self.last_fetched_epoch = NO_EPOCH
        self.log_start_offset = NO_OFFSET
        self.sent_high_watermark = NO_OFFSET
        self.sent_start_offset = NO_OFFSET
        self.is_counted = False  # its fetch offset is the follower's log end offset in the current leader epoch
        self.was_at_end = False  # when it was named: everything sent since is newer
        self.is_throttled = False  # throttled, until a timer fires

    def update(
        self, requested: "FetchRequest.FetchPartition | follower_fetch.FetchPartition", partition: Partition | None
    ) -> None:
        """The partition is named in a fetch."""
        self.offset = requested.fetch_offset
        self.max_bytes = requested.partition_max_bytes
        self.leader_epoch = requested.current_leader_epoch
        self.last_fetched_epoch = requested.last_fetched_epoch
        self.log_start_offset = requested.log_start_offset
        self.sent_high_watermark = NO_OFFSET
        self.is_counted = self.was_at_end = False
        if partition is not self.partition:
            self.leave()
            self.partition = partition
            if partition is not None:
                partition.followers[self] = None

    def leave(self) -> None:
        if self.partition is not None:
            self.partition.followers.pop(self, None)

    # Notifications of the partition

    def on_appended(self, count: int) -> None:
        """`count` more bytes can be fetched."""
        self.session.ready[self] = None
        self.session.on_bytes_available(count)

    def on_committed(self) -> None:
        """The high watermark has advanced."""
        self.session.ready[self] = None
        self.session.notify_soon()

    def on_leader_changed(self) -> None:
        """Another leader or leader epoch: earlier fetch positions do not count."""
        self.is_counted = False
        self.session.ready[self] = None
        self.session.wake()

    def request_fetch(self) -> None:
        self.session.request_fetch(self)


class ReplicaFetchSession:
    """The fetch session of one follower."""

    def __init__(self, session_id: int, replica: int) -> None:
        self.session_id = session_id
        self.replica = replica
        self.broker_epoch = NO_EPOCH
        self.epoch = 1
        self.fetched_ms = 0.0  # when its last fetch arrived, whichever partitions that named
        self.followed: dict[Key, SessionPartition] = {}
        self.ready: dict[SessionPartition, None] = {}  # partitions with news, the longest waiting first
        self.fetch_requested_by: dict[
            SessionPartition, None
        ] = {}  # partitions with a pending leadership check, see leadership_check.py
        self._waiting: FetchWaiter | None = None
        self._needed_bytes = 0
        self._deadline = LazyTimer(self.wake)
        self._commit_timer = LazyTimer(self.wake)

    def update(self, topics: Iterable[FetchRequest.FetchTopic], find: FindPartition) -> None:
        for topic in topics:
            for requested in topic.partitions:
                key = topic.topic_id, requested.partition
                followed = self.followed.get(key)
                if followed is None:
                    followed = self.followed[key] = SessionPartition(self, key)
                followed.update(requested, find(*key))
                self.ready[followed] = None

    def forget(self, topics: Iterable[FetchRequest.ForgottenTopic]) -> None:
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
        self._deadline.close()
        self._commit_timer.close()

    # Leadership checks

    def request_fetch(self, followed: SessionPartition) -> None:
        """A leadership check waits for the follower's next fetch: do not delay its fetches until then."""
        self.fetch_requested_by[followed] = None
        self.wake()

    def notify_leadership_checks(self) -> None:
        """The follower has fetched again."""
        for followed in list(self.fetch_requested_by):
            leading = None if followed.partition is None else followed.partition.role.leading
            if leading is None or not leading.leadership_check.fetched(followed):
                del self.fetch_requested_by[followed]

    # Delayed fetches

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    async def wait(self, needed_bytes: int, wait_ms: float, *, has_news: bool) -> None:
        """Wait for `needed_bytes`, other news, the deadline, or the follower's next fetch."""
        waiting = _FutureWaiter()
        self.begin_wait(waiting, needed_bytes, wait_ms, has_news=has_news)
        try:
            await waiting.done
        finally:
            self.end_wait(waiting)

    def begin_wait(self, waiting: FetchWaiter, needed_bytes: int, wait_ms: float, *, has_news: bool) -> None:
        self._needed_bytes = needed_bytes
        self._waiting = waiting
        self._deadline.set(wait_ms)
        if has_news:
            self.notify_soon()

    def end_wait(self, waiting: FetchWaiter) -> None:
        if self._waiting is waiting:
            self._waiting = None
        if self._waiting is None:
            self._deadline.stop()
            self._commit_timer.stop()

    def on_bytes_available(self, count: int) -> None:
        """`count` more bytes. Bytes that arrive while the follower processes a response go with its next fetch."""
        self._needed_bytes -= count
        if self._needed_bytes <= 0:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                waiting.on_bytes_available()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.complete()

    def hold_back(self, followed: SessionPartition, delay_ms: float) -> None:
        """The follower is throttled for now. One timer is enough, however often this is called."""
        if not followed.is_throttled:
            followed.is_throttled = True
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._release, followed)

    def _release(self, followed: SessionPartition) -> None:
        followed.is_throttled = False
        if self.followed.get(followed.key) is followed:
            followed.on_appended(self._needed_bytes)

    def notify_soon(self) -> None:
        """Delay the notification: with the next batch, which is likely to come soon, it is free."""
        if self._waiting is not None and not self._commit_timer.is_set:
            self._commit_timer.set(COMMITTED_MS)


class ReplicaFetchSessions:
    """All sessions of followers, by id. Bounded by the number of brokers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sessions: dict[int, ReplicaFetchSession] = {}  # the least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, replica: int) -> ReplicaFetchSession:
        """The session of a request, or a new one; raises if it is unknown or has another epoch."""
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            self._end(request.session_id, replica)
            session = ReplicaFetchSession(NO_FETCH_SESSION, replica)
            if request.session_epoch == INITIAL_SESSION_EPOCH:
                self._add(session)
            return session
        known = self._sessions.get(request.session_id)
        if known is None or known.replica != replica:
            raise FetchSessionIdNotFound(f"Unknown fetch session {request.session_id}.")
        if known.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(f"Fetch session {known.session_id} expects epoch {known.epoch}.")
        self.advance_epoch(known)
        return known

    def find(self, session_id: int, session_epoch: int, replica: int) -> ReplicaFetchSession | None:
        """The session that expects this fetch next."""
        known = self._sessions.get(session_id)
        return known if known is not None and known.replica == replica and known.epoch == session_epoch else None

    def advance_epoch(self, known: ReplicaFetchSession) -> None:
        """Another fetch of the session has arrived."""
        self._sessions[known.session_id] = self._sessions.pop(known.session_id)
        known.epoch = 1 if known.epoch == SESSION_EPOCH_MAX else known.epoch + 1
        known.wake()  # end the wait of an earlier fetch: a repeated fetch carries news

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
