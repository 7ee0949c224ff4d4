"""`Shares`: the share partitions whose leader is this broker, and the share sessions of their members."""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.meters import ShareMeter
from moldau.broker.shares.persister import SharePartitionKey, SharePersister
from moldau.broker.shares.share_partition import ShareHost, SharePartition
from moldau.machines.groups.share.settings import ShareGroupConfig, share_group_config
from moldau.machines.metadata.image import MetadataImage, Resource, ResourceType
from moldau.machines.shares.sessions import FetchedPartition, MemberKey, ShareSession, ShareSessions
from moldau.model.errors import CoordinatorNotAvailable, UnknownTopicId
from moldau.model.protocol import INITIAL_SESSION_EPOCH

SHARE_PARTITIONS_MAX: Final = 20_000  # loaded at one time


class MemberConnection(Protocol):
    """The connection of a member."""

    when_lost: Callable[[], None] | None


class Shares:
    """Share partitions are created by the first fetch of a group, and dropped with the leadership."""

    def __init__(self, host: ShareHost, persister: SharePersister) -> None:
        self._host = host
        self._persister = persister
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._used: dict[MemberKey, dict[SharePartitionKey, None]] = {}  # by members with a session
        self.sessions = ShareSessions()
        self.meter = ShareMeter()

    def __len__(self) -> int:
        return len(self._partitions)

    def loaded(self) -> list[SharePartition]:
        """The share partitions that groups use on this broker."""
        return list(self._partitions.values())

    def config(self, group_id: str) -> ShareGroupConfig:
        """The configs of a group."""
        configs = self._host.image.configs.get(Resource(ResourceType.GROUP, group_id), {})
        return share_group_config(self._host.settings, configs)

    # -- share partitions

    def topic_name(self, fetched: FetchedPartition) -> str:
        topic = self._host.image.topics_by_id.get(fetched.topic_id)
        if topic is None:
            raise UnknownTopicId("Unknown topic id.")
        return topic.name

    def open(self, member: MemberKey, fetched: FetchedPartition, config: ShareGroupConfig) -> SharePartition:
        """The share partition for a fetch of a member with a session; it may still have to load.

        Raises if another broker leads the partition.
        """
        found = self.find(member.group_id, fetched, config)
        if found is None:
            if len(self._partitions) >= SHARE_PARTITIONS_MAX:
                raise CoordinatorNotAvailable(f"This broker has {SHARE_PARTITIONS_MAX} share partitions already.")
            partition = self._partition(fetched)
            key = SharePartitionKey(member.group_id, fetched.topic_id, fetched.partition)
            found = SharePartition(key, partition, config, self._persister, self._host, self.meter, self._remove)
            self._partitions[key] = found
        found.members.add(member.member_id)
        self._used.setdefault(member, {})[found.key] = None
        return found

    def find(self, group_id: str, fetched: FetchedPartition, config: ShareGroupConfig) -> SharePartition | None:
        """The share partition if it is loaded; raises if another broker leads the partition."""
        partition = self._partition(fetched)
        found = self._partitions.get(SharePartitionKey(group_id, fetched.topic_id, fetched.partition))
        if found is not None and not (found.is_current and found.partition is partition):
            self._remove(found)
            return None
        if found is not None:
            found.configure(config)
        return found

    def _partition(self, fetched: FetchedPartition) -> Partition:
        return self._host.partitions.get(self.topic_name(fetched), fetched.partition, fetched.topic_id)

    def _remove(self, share: SharePartition) -> None:
        if self._partitions.get(share.key) is share:
            del self._partitions[share.key]
        share.close()

    def remove_stale(self, image: MetadataImage) -> None:
        """Drop the share partitions of deleted topics and of partitions that another broker leads now."""
        for share in list(self._partitions.values()):
            if share.key.topic_id not in image.topics_by_id or not share.is_current:
                self._remove(share)

    # -- sessions

    def begin(
        self,
        key: MemberKey,
        epoch: int,
        partitions: Iterable[FetchedPartition],
        forgotten: Iterable[FetchedPartition],
        connection: MemberConnection | None,
    ) -> ShareSession:
        """Open or continue the session of a fetch."""
        if epoch == INITIAL_SESSION_EPOCH:
            self.close_session(key)
            session = self.sessions.open(
                key, partitions, connection, self._host.settings.group_share_max_share_sessions
            )
            self._watch(connection)
            return session
        session = self.sessions.resume(key, epoch)
        self.sessions.change(session, partitions, forgotten)
        return session

    def _watch(self, connection: MemberConnection | None) -> None:
        """Close the connection's sessions when it is lost."""
        if connection is not None and connection.when_lost is None:
            connection.when_lost = lambda: self._connection_lost(connection)

    def _connection_lost(self, connection: MemberConnection) -> None:
        for key in self.sessions.of_connection(connection):
            self.close_session(key)

    def close_session(self, key: MemberKey) -> None:
        """End the member's session, if any: the records it has acquired are released."""
        self.sessions.close(key)
        for used in self._used.pop(key, ()):
            share = self._partitions.get(used)
            if share is not None:
                share.leave(key.member_id)

    async def close(self) -> None:
        """The broker stops: what was acquired is released by the next leaders."""
        shares, self._partitions = list(self._partitions.values()), {}
        for share in shares:
            await share.stop()
