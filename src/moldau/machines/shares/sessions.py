"""Share sessions (KIP-932): which partitions a member fetches from a broker; later requests carry only what changed.

A session belongs to a member of a group and to a connection. Every request of a session has the next epoch:

    0     opens a session, and closes an older one of the member
    1..   continues it: partitions are added and removed
    -1    closes it

Records that a member has acquired are released when its session ends, whether closed, replaced or lost.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from moldau.model.errors import InvalidShareSessionEpoch, ShareSessionLimitReached, ShareSessionNotFound
from moldau.model.ids import TopicId
from moldau.model.protocol import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH, SESSION_EPOCH_MAX

PARTITIONS_MAX: Final = 200_000  # in all sessions together


class MemberKey(NamedTuple):
    group_id: str
    member_id: str


class FetchedPartition(NamedTuple):
    topic_id: TopicId
    partition: int


class ShareSession:
    """The session of one member."""

    __slots__ = ("connection", "epoch", "key", "partitions")

    def __init__(self, key: MemberKey, connection: object) -> None:
        self.key = key
        self.connection = connection
        self.epoch = 1  # of the next request
        self.partitions: dict[FetchedPartition, None] = {}  # those fetched last at the end

    def move_to_end(self, partition: FetchedPartition) -> None:
        if partition in self.partitions:
            self.partitions[partition] = self.partitions.pop(partition)


class ShareSessions:
    """All share sessions of a broker, with limits of their number and of their partitions."""

    def __init__(self) -> None:
        self._sessions: dict[MemberKey, ShareSession] = {}
        self._of_connection: dict[object, dict[MemberKey, None]] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, key: MemberKey, partitions: Iterable[FetchedPartition], connection: object, sessions_max: int
    ) -> ShareSession:
        """Open a session; the member must not have one."""
        if len(self._sessions) >= sessions_max:
            raise ShareSessionLimitReached(f"This broker has {sessions_max} share sessions already.")
        session = ShareSession(key, connection)
        self._add(session, partitions)
        self._sessions[key] = session
        self._of_connection.setdefault(connection, {})[key] = None
        return session

    def find(self, key: MemberKey) -> ShareSession | None:
        return self._sessions.get(key)

    def resume(self, key: MemberKey, epoch: int) -> ShareSession:
        """The session of a request with this epoch, which is not the first; the last one has any epoch."""
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFound(f"Member {key.member_id} has no share session on this broker.")
        if epoch == FINAL_SESSION_EPOCH:
            return session
        if epoch != session.epoch or epoch == INITIAL_SESSION_EPOCH:
            raise InvalidShareSessionEpoch(f"The share session expects epoch {session.epoch}, not {epoch}.")
        session.epoch = 1 if epoch == SESSION_EPOCH_MAX else epoch + 1
        return session

    def change(
        self, session: ShareSession, added: Iterable[FetchedPartition], forgotten: Iterable[FetchedPartition]
    ) -> None:
        """Add partitions to a session, then remove others from it."""
        self._add(session, added)
        for each in forgotten:
            if session.partitions.pop(each, 0) is None:
                self._partition_count -= 1

    def _add(self, session: ShareSession, partitions: Iterable[FetchedPartition]) -> None:
        news = [each for each in dict.fromkeys(partitions) if each not in session.partitions]
        if self._partition_count + len(news) > PARTITIONS_MAX:
            raise ShareSessionLimitReached("Too many partitions in this broker's share sessions.")
        session.partitions.update(dict.fromkeys(news))
        self._partition_count += len(news)

    def close(self, key: MemberKey) -> ShareSession | None:
        """Remove the member's session, if any."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
            keys = self._of_connection[session.connection]
            del keys[key]
            if not keys:
                del self._of_connection[session.connection]
        return session

    def of_connection(self, connection: object) -> list[MemberKey]:
        """The members whose sessions belong to the connection."""
        return list(self._of_connection.get(connection, ()))
