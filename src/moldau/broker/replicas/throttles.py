"""Replication throttles: rate limits for the replicas that a topic lists, while they are out of sync."""

from typing import TYPE_CHECKING, Final

from moldau.broker.partitions.remote_follower import RemoteFollower
from moldau.model.ports import Clock
from moldau.storage.settings import LogSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.broker.configs.replica_settings import ReplicaSettings
    from moldau.broker.partitions.leader_role import LeaderRole

UNLIMITED: Final = 2**63 - 1
WINDOW_MS: Final = 1000.0  # how much may be sent ahead, and the longest wait returned
EVERY_REPLICA: Final = "*"


def is_throttled(named: tuple[str, ...], partition: int, replica: int) -> bool:
    """Whether a topic's list of partition:replica pairs contains this one."""
    return bool(named) and (EVERY_REPLICA in named or f"{partition}:{replica}" in named)


class Bucket:
    """A rate limit: excess bytes delay the bytes that follow.

    The debt is kept in bytes, so that a changed rate applies to it at once.
    """

    __slots__ = ("_clock", "_owed_bytes", "_settled_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed_bytes = 0.0
        self._settled_ms = clock.monotonic_ms()

    def delay_ms(self, rate: int) -> float:
        """How long to wait before more may be sent."""
        if rate >= UNLIMITED:
            return 0.0
        self._settle(rate)
        return min(self._owed_bytes * 1000 / max(rate, 1), WINDOW_MS)

    def took(self, count: int, rate: int) -> None:
        self._settle(rate)
        if rate < UNLIMITED:
            self._owed_bytes += count

    def _settle(self, rate: int) -> None:
        now_ms = self._clock.monotonic_ms()
        self._owed_bytes = max(0.0, self._owed_bytes - (now_ms - self._settled_ms) * rate / 1000)
        self._settled_ms = now_ms


class Throttles:
    """Both directions: what this node sends as leader and fetches as follower."""

    def __init__(self, me: int, clock: Clock, settings: "Callable[[], ReplicaSettings]") -> None:
        self._me = me
        self._settings = settings
        self._sent = Bucket(clock)
        self._fetched = Bucket(clock)

    # As a leader

    def leader_delay_ms(self, followed: RemoteFollower, leading: "LeaderRole") -> float:
        """How long a follower has to wait for more of this partition; 0 for nearly all."""
        if not self._holds_back(followed, leading):
            return 0.0
        return self._sent.delay_ms(self._settings().leader_throttled_rate)

    def sent(self, followed: RemoteFollower, leading: "LeaderRole", count: int) -> None:
        if count and self._holds_back(followed, leading):
            self._sent.took(count, self._settings().leader_throttled_rate)

    def _holds_back(self, followed: RemoteFollower, leading: "LeaderRole") -> bool:
        """The topic lists the sending broker, whichever follower fetches."""
        named = leading.partition.log.settings.leader_replication_throttled_replicas
        return is_throttled(named, followed.key[1], self._me) and followed.session.replica not in leading.machine.isr

    # As a follower

    def follower_delay_ms(self, settings: LogSettings, partition: int, me: int, *, is_in_sync: bool) -> float:
        """How long not to fetch this partition."""
        if not self._is_held(settings, partition, me, is_in_sync=is_in_sync):
            return 0.0
        return self._fetched.delay_ms(self._settings().follower_throttled_rate)

    def fetched(self, settings: LogSettings, partition: int, me: int, count: int, *, is_in_sync: bool) -> None:
        if self._is_held(settings, partition, me, is_in_sync=is_in_sync):
            self._fetched.took(count, self._settings().follower_throttled_rate)

    def _is_held(self, settings: LogSettings, partition: int, me: int, *, is_in_sync: bool) -> bool:
        named = settings.follower_replication_throttled_replicas
        return not is_in_sync and is_throttled(named, partition, me)
