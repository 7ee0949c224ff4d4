"""A follower as the leader of a partition sees it: the position of another broker, kept in its fetch session.

`fetch.replica_sessions` implements both protocols. A partition lists its remote followers, so that a session learns of
news from its partitions and a fetch never has to scan them.
"""

from typing import Protocol


class RemoteSession(Protocol):
    """The fetch session of a follower."""

    @property
    def replica(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def fetched_ms(self) -> float:
        """When its last fetch arrived, whichever partitions that named."""

    @property
    def is_waiting(self) -> bool:
        """Whether one of its fetches is delayed here."""


class RemoteFollower(Protocol):
    """One partition in the session."""

    is_counted: bool  # its fetch offset is the follower's log end offset in the current leader epoch

    @property
    def session(self) -> RemoteSession: ...

    @property
    def key(self) -> tuple[bytes, int]:
        """Topic id and partition."""

    @property
    def offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    def on_appended(self, count: int) -> None:
        """The log has `count` more bytes to fetch."""

    def on_committed(self) -> None:
        """The high watermark has advanced."""

    def on_leader_changed(self) -> None:
        """The leader or its epoch has changed."""

    def request_fetch(self) -> None:
        """Have the follower fetch again soon: a leadership check waits for it."""
